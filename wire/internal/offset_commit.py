"""OffsetCommit (record type 1): versions 0, value 0-4.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, RecordKey, RecordValue, in_versions, int32, int64


class OffsetCommitKey(RecordKey, record_type=1, versions="0"):
    group: str = ""
    topic: str = ""
    partition: int32 = 0


class OffsetCommitValue(RecordValue, record_type=1, versions="0-4", flexible="4+"):
    offset: int64 = 0
    leader_epoch: int32 = in_versions("3+", ignorable=True, default=-1)
    metadata: str = ""
    commit_timestamp: int64 = 0
    expire_timestamp: int64 = in_versions("1", ignorable=True, default=-1)
    topic_id: UUID = in_versions("4+", tag=0, ignorable=True)
