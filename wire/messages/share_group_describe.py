"""ShareGroupDescribe (API key 77): versions 1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, in_versions, int16, int32


class ShareGroupDescribeRequest(Message, api_key=77, versions="1", flexible="1+"):
    group_ids: list[str] = []
    include_authorized_operations: bool = False


class ShareGroupDescribeResponse(Message, api_key=77, versions="1", flexible="1+"):
    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []


class DescribedGroup(Struct):
    error_code: int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    assignor_name: str = ""
    members: list[Member] = []
    authorized_operations: int32 = -2147483648


class Member(Struct):
    member_id: str = ""
    rack_id: str | None = None
    member_epoch: int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    assignment: Assignment = in_versions()


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = []


class TopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int32] = []
