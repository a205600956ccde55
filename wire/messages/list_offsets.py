"""ListOffsets (API key 2): versions 1-11.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32, int64


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int32 = 0
    isolation_level: int8 = in_versions("2+")
    topics: list[ListOffsetsTopic] = []
    timeout_ms: int32 = in_versions("10+", ignorable=True)


class ListOffsetsTopic(Struct):
    name: str = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsPartition(Struct):
    partition_index: int32 = 0
    current_leader_epoch: int32 = in_versions("4+", ignorable=True, default=-1)
    timestamp: int64 = 0


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int32 = in_versions("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = []


class ListOffsetsTopicResponse(Struct):
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsPartitionResponse(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: int32 = in_versions("4+", default=-1)
