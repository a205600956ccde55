"""DescribeQuorum (API key 55): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int16, int32, int64, uint16


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: list[TopicData] = []


class TopicData(Struct):
    topic_name: str = ""
    partitions: list[PartitionData] = []


class PartitionData(Struct):
    partition_index: int32 = 0


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int16 = 0
    error_message: str | None = in_versions("2+", ignorable=True)
    topics: list[ResponseTopicData] = []
    nodes: list[Node] = in_versions("2+")


class ResponseTopicData(Struct):
    topic_name: str = ""
    partitions: list[ResponsePartitionData] = []


class Node(Struct):
    node_id: int32 = 0
    listeners: list[Listener] = []


class ResponsePartitionData(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = in_versions("2+", ignorable=True)
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    high_watermark: int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class Listener(Struct):
    name: str = ""
    host: str = ""
    port: uint16 = 0


class ReplicaState(Struct):
    replica_id: int32 = 0
    replica_directory_id: UUID = in_versions("2+")
    log_end_offset: int64 = 0
    last_fetch_timestamp: int64 = in_versions("1+", ignorable=True, default=-1)
    last_caught_up_timestamp: int64 = in_versions("1+", ignorable=True, default=-1)
