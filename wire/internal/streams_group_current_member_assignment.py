"""StreamsGroupCurrentMemberAssignment (record type 22): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, in_versions, int8, int32


class StreamsGroupCurrentMemberAssignmentKey(RecordKey, record_type=22, versions="0"):
    group_id: str = ""
    member_id: str = ""


class StreamsGroupCurrentMemberAssignmentValue(
    RecordValue, record_type=22, versions="0", flexible="0+"
):
    member_epoch: int32 = 0
    previous_member_epoch: int32 = 0
    state: int8 = 0
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []
    active_tasks_pending_revocation: list[TaskIds] = []
    standby_tasks_pending_revocation: list[TaskIds] = []
    warmup_tasks_pending_revocation: list[TaskIds] = []


class TaskIds(Struct):
    subtopology_id: str = ""
    partitions: list[int32] = []
    assignment_epochs: list[int32] | None = in_versions("0+", tag=0)
