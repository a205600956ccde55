"""StreamsGroupTargetAssignmentMember (record type 21): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, int32


class StreamsGroupTargetAssignmentMemberKey(RecordKey, record_type=21, versions="0"):
    group_id: str = ""
    member_id: str = ""


class StreamsGroupTargetAssignmentMemberValue(
    RecordValue, record_type=21, versions="0", flexible="0+"
):
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


class TaskIds(Struct):
    subtopology_id: str = ""
    partitions: list[int32] = []
