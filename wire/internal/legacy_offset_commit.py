"""LegacyOffsetCommit (record type 0): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, int32, int64


class LegacyOffsetCommitKey(RecordKey, record_type=0, versions="0"):
    group: str = ""
    topic: str = ""
    partition: int32 = 0


class LegacyOffsetCommitValue(RecordValue, record_type=0, versions="0"):
    offset: int64 = 0
    metadata: str = ""
    commit_timestamp: int64 = 0
