"""OffsetFetch (API key 9): versions 1-10.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int16, int32, int64


class OffsetFetchRequest(Message, api_key=9, versions="1-10", flexible="6+"):
    group_id: str = in_versions("1-7")
    topics: list[OffsetFetchRequestTopic] | None = in_versions("1-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = in_versions("8+")
    require_stable: bool = in_versions("7+")


class OffsetFetchRequestTopic(Struct):
    name: str = ""
    partition_indexes: list[int32] = []


class OffsetFetchRequestGroup(Struct):
    group_id: str = ""
    member_id: str | None = in_versions("9+", ignorable=True, default=None)
    member_epoch: int32 = in_versions("9+", ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequestTopics(Struct):
    name: str = in_versions("8-9", ignorable=True)
    topic_id: UUID = in_versions("10+", ignorable=True)
    partition_indexes: list[int32] = []


class OffsetFetchResponse(Message, api_key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: int32 = in_versions("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = in_versions("1-7")
    error_code: int16 = in_versions("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = in_versions("8+")


class OffsetFetchResponseTopic(Struct):
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponseGroup(Struct):
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: int16 = 0


class OffsetFetchResponsePartition(Struct):
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = in_versions("5+", ignorable=True, default=-1)
    metadata: str | None = ""
    error_code: int16 = 0


class OffsetFetchResponseTopics(Struct):
    name: str = in_versions("8-9", ignorable=True)
    topic_id: UUID = in_versions("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponsePartitions(Struct):
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = -1
    metadata: str | None = ""
    error_code: int16 = 0
