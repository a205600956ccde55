"""Members go: by their own will, for a while, or because they were given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.decision import Answered
from coordinator.groups.consumer.draft import Draft
from coordinator.groups.consumer.exchange import (
    HeartbeatAnswer,
    HeartbeatDecision,
    HeartbeatRequest,
)
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import LEAVING_FOR_A_WHILE, Member
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    assignment_record,
    member_tombstones,
)
from coordinator.groups.consumer.subscribing import next_epoch, unused_regexes
from coordinator.groups.consumer.topics import TopicImage


def decide_leave(
    group: ConsumerGroup, request: HeartbeatRequest, topics: TopicImage
) -> HeartbeatDecision:
    """Return the records and the answer of a heartbeat with epoch -1, or -2: for a while.

    A static member that leaves for a while keeps its place until its session ends. Refuses with
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    answer = HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        member = group.static_member(request.instance_id, request.member_id)
    if request.instance_id is not None and request.member_epoch == LEAVING_FOR_A_WHILE:
        records = [assignment_record(group.group_id, _on_leave(member))]
    else:
        records = decide_removal(group, [member.member_id], topics)
    return Answered(records=tuple(records), answer=answer)


def decide_removal(
    group: ConsumerGroup, member_ids: Iterable[str], topics: TopicImage
) -> list[ConsumerGroupRecord]:
    """Return the records of a group without these members, at its next epoch.

    Their partitions are free at once; who gets them is decided with the next heartbeat.
    """
    draft = Draft(group)
    for member_id in member_ids:
        draft.add(member_tombstones(group.group_id, member_id))
    draft.add(unused_regexes(draft.group))
    draft.add(next_epoch(draft.group, topics, changed=True))
    return draft.records


def _on_leave(member: Member) -> Member:
    return replace(
        member,
        epoch=LEAVING_FOR_A_WHILE,
        assigned={
            topic_id: dict.fromkeys(partitions, 0)
            for topic_id, partitions in member.assigned.items()
        },
        revoking={},
    )
