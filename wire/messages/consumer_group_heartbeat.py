"""ConsumerGroupHeartbeat (API key 68): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, in_versions, int16, int32


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = in_versions("1+", default=None)
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class TopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None


class Assignment(Struct):
    topic_partitions: list[ResponseTopicPartitions] = []


class ResponseTopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []
