"""ConsumerGroupTargetAssignmentMember (record type 7): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, RecordKey, RecordValue, Struct, int32


class ConsumerGroupTargetAssignmentMemberKey(RecordKey, record_type=7, versions="0"):
    group_id: str = ""
    member_id: str = ""


class ConsumerGroupTargetAssignmentMemberValue(
    RecordValue, record_type=7, versions="0", flexible="0+"
):
    topic_partitions: list[TopicPartition] = []


class TopicPartition(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []
