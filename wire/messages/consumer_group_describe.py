"""ConsumerGroupDescribe (API key 69): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, in_versions, int8, int16, int32


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = []
    include_authorized_operations: bool = False


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
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
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: Assignment = in_versions()
    target_assignment: Assignment = in_versions()
    member_type: int8 = in_versions("1+", ignorable=True, default=-1)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = []


class TopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int32] = []
