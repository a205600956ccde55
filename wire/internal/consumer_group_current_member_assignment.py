"""ConsumerGroupCurrentMemberAssignment (record type 8): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, RecordKey, RecordValue, Struct, in_versions, int8, int32


class ConsumerGroupCurrentMemberAssignmentKey(RecordKey, record_type=8, versions="0"):
    group_id: str = ""
    member_id: str = ""


class ConsumerGroupCurrentMemberAssignmentValue(
    RecordValue, record_type=8, versions="0", flexible="0+"
):
    member_epoch: int32 = 0
    previous_member_epoch: int32 = 0
    state: int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


class TopicPartitions(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []
    assignment_epochs: list[int32] | None = in_versions("0+", tag=0)
