"""ShareGroupHeartbeat (API key 76): versions 1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, int16, int32


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="1+"):
    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="1+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = []


class TopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []
