"""CreateTopics (API key 19): versions 2-7.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int8, int16, int32


class CreateTopicsRequest(Message, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = []
    timeout_ms: int32 = 60000
    validate_only: bool = False


class CreatableTopic(Struct):
    name: str = ""
    num_partitions: int32 = 0
    replication_factor: int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreatableReplicaAssignment(Struct):
    partition_index: int32 = 0
    broker_ids: list[int32] = []


class CreatableTopicConfig(Struct):
    name: str = ""
    value: str | None = ""


class CreateTopicsResponse(Message, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int32 = 0
    topics: list[CreatableTopicResult] = []


class CreatableTopicResult(Struct):
    name: str = ""
    topic_id: UUID = in_versions("7+", ignorable=True)
    error_code: int16 = 0
    error_message: str | None = ""
    topic_config_error_code: int16 = in_versions("5+", tag=0, ignorable=True)
    num_partitions: int32 = in_versions("5+", ignorable=True, default=-1)
    replication_factor: int16 = in_versions("5+", ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = in_versions("5+", ignorable=True)


class CreatableTopicConfigs(Struct):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int8 = -1
    is_sensitive: bool = False
