"""DescribeTopicPartitions (API key 75): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, int16, int32


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = []
    response_partition_limit: int32 = 2000
    cursor: Cursor | None = None


class TopicRequest(Struct):
    name: str = ""


class Cursor(Struct):
    topic_name: str = ""
    partition_index: int32 = 0


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: ResponseCursor | None = None


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int16 = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: int32 = -2147483648


class ResponseCursor(Struct):
    topic_name: str = ""
    partition_index: int32 = 0


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int16 = 0
    partition_index: int32 = 0
    leader_id: int32 = 0
    leader_epoch: int32 = -1
    replica_nodes: list[int32] = []
    isr_nodes: list[int32] = []
    eligible_leader_replicas: list[int32] | None = None
    last_known_elr: list[int32] | None = None
    offline_replicas: list[int32] = []
