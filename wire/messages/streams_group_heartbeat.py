"""StreamsGroupHeartbeat (API key 88): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32, int64, uint16


class StreamsGroupHeartbeatRequest(Message, api_key=88, versions="0", flexible="0+"):
    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    endpoint_information_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False


class Topology(Struct):
    epoch: int32 = 0
    subtopologies: list[Subtopology] = []


class TaskIds(Struct):
    subtopology_id: str = ""
    partitions: list[int32] = []


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


class Subtopology(Struct):
    subtopology_id: str = ""
    source_topics: list[str] = []
    source_topic_regex: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_sink_topics: list[str] = []
    repartition_source_topics: list[TopicInfo] = []
    copartition_groups: list[CopartitionGroup] = []


class TopicInfo(Struct):
    name: str = ""
    partitions: int32 = 0
    replication_factor: int16 = 0
    topic_configs: list[KeyValue] = []


class CopartitionGroup(Struct):
    source_topics: list[int16] = []
    source_topic_regex: list[int16] = []
    repartition_source_topics: list[int16] = []


class StreamsGroupHeartbeatResponse(Message, api_key=88, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    acceptable_recovery_lag: int32 = 0
    task_offset_interval_ms: int32 = 0
    status: list[Status] | None = []
    active_tasks: list[ResponseTaskIds] | None = None
    standby_tasks: list[ResponseTaskIds] | None = None
    warmup_tasks: list[ResponseTaskIds] | None = None
    endpoint_information_epoch: int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None


class Status(Struct):
    status_code: int8 = 0
    status_detail: str = ""


class ResponseTaskIds(Struct):
    subtopology_id: str = ""
    partitions: list[int32] = []


class EndpointToPartitions(Struct):
    user_endpoint: ResponseEndpoint = in_versions()
    active_partitions: list[TopicPartition] = []
    standby_partitions: list[TopicPartition] = []


class ResponseEndpoint(Struct):
    host: str = ""
    port: uint16 = 0


class TopicPartition(Struct):
    topic: str = ""
    partitions: list[int32] = []
