"""ShareGroupStatePartitionMetadata (record type 15): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, RecordKey, RecordValue, Struct, int32


class ShareGroupStatePartitionMetadataKey(RecordKey, record_type=15, versions="0"):
    group_id: str = ""


class ShareGroupStatePartitionMetadataValue(
    RecordValue, record_type=15, versions="0", flexible="0+"
):
    initializing_topics: list[TopicPartitionsInfo] = []
    initialized_topics: list[TopicPartitionsInfo] = []
    deleting_topics: list[TopicInfo] = []


class TopicPartitionsInfo(Struct):
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int32] = []


class TopicInfo(Struct):
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
