"""Members go: by their own will, for a while, or because they were given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.groups.consumer.draft import Draft
from coordinator.groups.consumer.exchange import HeartbeatRequest
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import LEAVING_FOR_A_WHILE, Member
from coordinator.groups.consumer.partitions import as_target, with_epoch
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    assignment_record,
    member_tombstones,
)
from coordinator.groups.consumer.subscribing import next_epoch, unused_regexes
from coordinator.groups.consumer.topics import TopicImage


def leaving_member(group: ConsumerGroup, request: HeartbeatRequest) -> Member:
    """Return who leaves with a heartbeat. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if request.instance_id is None:
        return group.member(request.member_id)
    return group.static_member(request.instance_id, request.member_id)


def decide_absence(group: ConsumerGroup, member: Member) -> list[ConsumerGroupRecord]:
    """Return the record of a static member that leaves for a while (epoch -2).

    It keeps its place and its partitions until its session ends.
    """
    absent = replace(
        member,
        epoch=LEAVING_FOR_A_WHILE,
        assigned=with_epoch(as_target(member.assigned), 0),
        revoking={},
    )
    return [assignment_record(group.group_id, absent)]


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
