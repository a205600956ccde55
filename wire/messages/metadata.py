"""Metadata (API key 3): versions 0-13.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int16, int32


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = in_versions("0+", nullable="1+")
    allow_auto_topic_creation: bool = in_versions("4+", default=True)
    include_cluster_authorized_operations: bool = in_versions("8-10")
    include_topic_authorized_operations: bool = in_versions("8+")


class MetadataRequestTopic(Struct):
    topic_id: UUID = in_versions("10+", ignorable=True)
    name: str | None = in_versions("0+", nullable="10+")


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int32 = in_versions("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = []
    cluster_id: str | None = in_versions("2+", ignorable=True, default=None)
    controller_id: int32 = in_versions("1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: int32 = in_versions("8-10", default=-2147483648)
    error_code: int16 = in_versions("13+", ignorable=True)


class MetadataResponseBroker(Struct):
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = in_versions("1+", ignorable=True, default=None)


class MetadataResponseTopic(Struct):
    error_code: int16 = 0
    name: str | None = in_versions("0+", nullable="12+")
    topic_id: UUID = in_versions("10+", ignorable=True)
    is_internal: bool = in_versions("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: int32 = in_versions("8+", default=-2147483648)


class MetadataResponsePartition(Struct):
    error_code: int16 = 0
    partition_index: int32 = 0
    leader_id: int32 = 0
    leader_epoch: int32 = in_versions("7+", ignorable=True, default=-1)
    replica_nodes: list[int32] = []
    isr_nodes: list[int32] = []
    offline_replicas: list[int32] = in_versions("5+", ignorable=True)
