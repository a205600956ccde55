"""ConsumerGroupRegularExpression (record type 16): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, int64


class ConsumerGroupRegularExpressionKey(RecordKey, record_type=16, versions="0"):
    group_id: str = ""
    regular_expression: str = ""


class ConsumerGroupRegularExpressionValue(RecordValue, record_type=16, versions="0", flexible="0+"):
    topics: list[str] = []
    version: int64 = 0
    timestamp: int64 = 0
