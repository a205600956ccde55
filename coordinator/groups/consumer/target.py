"""The target assignment: who shall read what, reckoned anew when the group's epoch has risen."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.groups.consumer.assignors import Assignor, Reader
from coordinator.groups.consumer.exchange import ConsumerLimits
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.range_assignor import assign_ranges
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    target_epoch_record,
    target_record,
)
from coordinator.groups.consumer.topics import TopicImage, resolved
from coordinator.groups.consumer.uniform_assignor import assign_uniformly

#: By the name that members and `group.consumer.assignors` give.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


def decide_target(
    group: ConsumerGroup, topics: TopicImage, limits: ConsumerLimits, now_ms: int
) -> list[ConsumerGroupRecord]:
    """Return what changes in the target assignment if one is due: the group's epoch is ahead.

    `limits.assignment_interval_ms` after the last one at the earliest (0: at once).
    """
    if group.assignment_epoch >= group.epoch:
        return []
    interval_ms = limits.assignment_interval_ms
    if interval_ms and group.assigned_at_ms and now_ms < group.assigned_at_ms + interval_ms:
        return []
    return [
        *_changed_targets(group, topics, limits.assignors[0]),
        target_epoch_record(group.group_id, group.epoch, now_ms),
    ]


def _changed_targets(
    group: ConsumerGroup, topics: TopicImage, default_assignor: str
) -> Iterable[ConsumerGroupRecord]:
    existing = resolved(group.subscribed_names(), topics)
    by_name = {topic.name: topic.topic_id for topic in existing.values()}
    readers = [
        Reader(
            member.member_id,
            member.instance_id,
            frozenset(by_name[name] for name in group.names_of(member) if name in by_name),
            group.target(member.member_id),
        )
        for member in group.members.values()
    ]
    counts = {topic.topic_id: topic.partition_count for topic in existing.values()}
    # Members in a log of Apache Kafka's may have asked for one that is not here.
    assign = ASSIGNORS.get(group.preferred_assignor(default_assignor), ASSIGNORS[default_assignor])
    for member_id, target in assign(readers, counts).items():
        if member_id not in group.targets or target != group.targets[member_id]:
            yield target_record(group.group_id, member_id, target)
