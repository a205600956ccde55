"""OffsetCommit (API key 8): versions 2-10.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int16, int32, int64


class OffsetCommitRequest(Message, api_key=8, versions="2-10", flexible="8+"):
    group_id: str = ""
    generation_id_or_member_epoch: int32 = -1
    member_id: str = ""
    group_instance_id: str | None = in_versions("7+", default=None)
    retention_time_ms: int64 = in_versions("2-4", ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitRequestTopic(Struct):
    name: str = in_versions("2-9", ignorable=True)
    topic_id: UUID = in_versions("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequestPartition(Struct):
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = in_versions("6+", ignorable=True, default=-1)
    committed_metadata: str | None = ""


class OffsetCommitResponse(Message, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int32 = in_versions("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = []


class OffsetCommitResponseTopic(Struct):
    name: str = in_versions("2-9", ignorable=True)
    topic_id: UUID = in_versions("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponsePartition(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
