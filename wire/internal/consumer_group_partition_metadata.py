"""ConsumerGroupPartitionMetadata (record type 4): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, RecordKey, RecordValue, Struct, int32


class ConsumerGroupPartitionMetadataKey(RecordKey, record_type=4, versions="0"):
    group_id: str = ""


class ConsumerGroupPartitionMetadataValue(RecordValue, record_type=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = []


class TopicMetadata(Struct):
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    num_partitions: int32 = 0
    partition_metadata: list[PartitionMetadata] = []


class PartitionMetadata(Struct):
    partition: int32 = 0
    racks: list[str] = []
