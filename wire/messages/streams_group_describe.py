"""StreamsGroupDescribe (API key 89): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64, uint16


class StreamsGroupDescribeRequest(Message, api_key=89, versions="0", flexible="0+"):
    group_ids: list[str] = []
    include_authorized_operations: bool = False


class StreamsGroupDescribeResponse(Message, api_key=89, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []


class DescribedGroup(Struct):
    error_code: int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: int32 = -2147483648


class Topology(Struct):
    epoch: int32 = 0
    subtopologies: list[Subtopology] | None = None


class Member(Struct):
    member_id: str = ""
    member_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []
    task_offsets: list[TaskOffset] = []
    task_end_offsets: list[TaskOffset] = []
    assignment: Assignment = in_versions()
    target_assignment: Assignment = in_versions()
    is_classic: bool = False


class Subtopology(Struct):
    subtopology_id: str = ""
    source_topics: list[str] = []
    repartition_sink_topics: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_source_topics: list[TopicInfo] = []


class Endpoint(Struct):
    host: str = ""
    port: uint16 = 0


class KeyValue(Struct):
    key: str = ""
    value: str = ""


class TaskOffset(Struct):
    subtopology_id: str = ""
    partition: int32 = 0
    offset: int64 = 0


class Assignment(Struct):
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


class TopicInfo(Struct):
    name: str = ""
    partitions: int32 = 0
    replication_factor: int16 = 0
    topic_configs: list[KeyValue] = []


class TaskIds(Struct):
    subtopology_id: str = ""
    partitions: list[int32] = []
