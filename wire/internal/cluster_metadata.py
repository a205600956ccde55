"""Records of Apache Kafka's metadata log, __cluster_metadata: those read here.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, MetadataRecord, in_versions, int8, int32, int64


class AbortTransactionRecord(MetadataRecord, record_type=25, versions="0", flexible="0+"):
    reason: str | None = in_versions("0+", tag=0, default=None)


class BeginTransactionRecord(MetadataRecord, record_type=23, versions="0", flexible="0+"):
    name: str | None = in_versions("0+", tag=0, default=None)


class ConfigRecord(MetadataRecord, record_type=4, versions="0", flexible="0+"):
    resource_type: int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""


class EndTransactionRecord(MetadataRecord, record_type=24, versions="0", flexible="0+"):
    pass


class PartitionRecord(MetadataRecord, record_type=3, versions="0-2", flexible="0+"):
    partition_id: int32 = -1
    topic_id: UUID = ZERO_UUID
    replicas: list[int32] = []
    isr: list[int32] = []
    removing_replicas: list[int32] = []
    adding_replicas: list[int32] = []
    leader: int32 = -1
    leader_recovery_state: int8 = in_versions("0+", tag=0)
    leader_epoch: int32 = -1
    partition_epoch: int32 = -1
    directories: list[UUID] = in_versions("1+")
    eligible_leader_replicas: list[int32] | None = in_versions("2+", tag=1, default=None)
    last_known_elr: list[int32] | None = in_versions("2+", tag=2, default=None)


class ProducerIdsRecord(MetadataRecord, record_type=15, versions="0", flexible="0+"):
    broker_id: int32 = 0
    broker_epoch: int64 = -1
    next_producer_id: int64 = 0


class RemoveTopicRecord(MetadataRecord, record_type=9, versions="0", flexible="0+"):
    topic_id: UUID = ZERO_UUID


class TopicRecord(MetadataRecord, record_type=2, versions="0", flexible="0+"):
    name: str = ""
    topic_id: UUID = ZERO_UUID
