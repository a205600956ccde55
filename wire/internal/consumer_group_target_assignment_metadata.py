"""ConsumerGroupTargetAssignmentMetadata (record type 6): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, in_versions, int32, int64


class ConsumerGroupTargetAssignmentMetadataKey(RecordKey, record_type=6, versions="0"):
    group_id: str = ""


class ConsumerGroupTargetAssignmentMetadataValue(
    RecordValue, record_type=6, versions="0", flexible="0+"
):
    assignment_epoch: int32 = 0
    assignment_timestamp: int64 = in_versions("0+", tag=0)
