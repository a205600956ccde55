"""The target assignment of a consumer group, and the steps of each member towards it.

The target is computed anew when the group's epoch has risen. Each member then reconciles: first it
gives partitions back, then it gets those that are free. A member that has to give partitions back
keeps its epoch and is UNREVOKED_PARTITIONS until a heartbeat says that the member does not own them
any more. Then the member moves to the target's epoch and gets the free part of its target. While
other members still hold some of the target, it is UNRELEASED_PARTITIONS, and each of its heartbeats
looks again. So no partition ever has two owners. Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from uuid import UUID

from coordinator.groups.consumer.assignors import Assignor, Reader, assign_ranges, assign_uniformly
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import (
    Assigned,
    Member,
    MemberState,
    Owned,
    Target,
    merged,
    overlap,
    with_epoch,
)
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    target_epoch_record,
    target_record,
)
from coordinator.groups.consumer.requests import ConsumerLimits
from coordinator.groups.consumer.subscription import TopicImage, topics_read
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def reconcile(
    group: ConsumerGroup,
    member: Member,
    owned: Owned | None,
    topics: TopicImage,
    *,
    subscription_changed: bool = False,
) -> Member:
    """Return the member after its next step towards its target assignment, or as it was.

    `owned` is what the heartbeat says that the member owns; None: the same as before. Raises
    FENCED_MEMBER_EPOCH for a member whose state a later version of the broker wrote.
    """
    # Nearly every heartbeat ends here.
    if not subscription_changed and member.is_reconciled_to(group.assignment_epoch):
        return member
    match member.state:
        case MemberState.STABLE if member.epoch == group.assignment_epoch:
            return _without_unsubscribed(group, member, owned, topics)
        case MemberState.UNREVOKED_PARTITIONS if _still_owns(owned, member.revoking):
            if subscription_changed:
                return _without_unsubscribed(group, member, owned, topics)
            return member
        case MemberState.UNKNOWN if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its"
                " partitions and rejoin.",
            )
    return _step(group, member, owned, topics)


@dataclass(slots=True)
class _Difference:
    """The difference between what a member has and its target."""

    kept: dict[UUID, dict[int, int]]
    revoked: dict[UUID, dict[int, int]]
    free: dict[UUID, frozenset[int]]
    #: whether others hold some of the target
    waits: bool


def _step(group: ConsumerGroup, member: Member, owned: Owned | None, topics: TopicImage) -> Member:
    found = _compare(group, member, _readable(group, member, topics))
    if found.revoked and _still_owns(owned, found.revoked):
        # The epoch stays, and nothing new is given: the member still reads these partitions.
        return replace(
            member.at_epoch(member.epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=found.kept,
            revoking=found.revoked,
        )
    epoch = group.assignment_epoch
    return replace(
        member.at_epoch(epoch),
        state=MemberState.UNRELEASED_PARTITIONS if found.waits else MemberState.STABLE,
        assigned=merged(found.kept, with_epoch(found.free, epoch)),
        revoking={},
    )


def _compare(group: ConsumerGroup, member: Member, target: Target) -> _Difference:
    found = _Difference({}, {}, {}, False)
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset())
        kept = {partition: epoch for partition, epoch in epochs.items() if partition in wanted}
        if kept:
            found.kept[topic_id] = kept
        if len(kept) < len(epochs):
            found.revoked[topic_id] = {
                partition: epoch for partition, epoch in epochs.items() if partition not in wanted
            }
    for topic_id, wanted in target.items():
        missing = wanted - member.assigned.get(topic_id, {}).keys()
        owners = group.owners.get(topic_id, {})
        # Free, too, is what this member itself has yet to give back.
        free = frozenset(p for p in missing if owners.get(p, member.member_id) == member.member_id)
        found.waits |= len(free) < len(missing)
        if free:
            found.free[topic_id] = free
    return found


def _readable(group: ConsumerGroup, member: Member, topics: TopicImage) -> Target:
    """Return the target without the topics that the member no longer subscribes to.

    The target may be older than the member's last subscription.
    """
    names = group.names_of(member)
    readable: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in group.target(member.member_id).items():
        topic = topics.by_id(topic_id)
        if topic is not None and topic.name in names:
            readable[topic_id] = partitions
    return readable


def _without_unsubscribed(
    group: ConsumerGroup, member: Member, owned: Owned | None, topics: TopicImage
) -> Member:
    """Return the member without the topics it no longer subscribes to; its epoch stays.

    Their partitions are revoked at once: the next target, without them, may take a while.
    """
    names = group.names_of(member)
    kept: dict[UUID, Mapping[int, int]] = {}
    revoked = dict(member.revoking)
    for topic_id, epochs in member.assigned.items():
        topic = topics.by_id(topic_id)
        if topic is not None and topic.name in names:
            kept[topic_id] = epochs
        else:
            revoked[topic_id] = {**revoked.get(topic_id, {}), **epochs}
    if len(kept) == len(member.assigned):
        return member
    moved = replace(member.at_epoch(member.epoch), assigned=kept)
    if _still_owns(owned, revoked):
        return replace(moved, state=MemberState.UNREVOKED_PARTITIONS, revoking=revoked)
    return moved


def _still_owns(owned: Owned | None, revoked: Assigned) -> bool:
    return owned is None or overlap(owned, revoked)


#: A group with more members is large. An assignment takes some 0.01 ms for each member.
LARGE_MEMBERS = 100
#: Kafka's default of `group.consumer.assignment.interval.ms`.
LARGE_INTERVAL_MS = 1_000

#: By the name that members and `group.consumer.assignors` give.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


def decide_target(
    group: ConsumerGroup, topics: TopicImage, limits: ConsumerLimits, now_ms: int
) -> list[ConsumerGroupRecord]:
    """Return the changes of the target assignment, if the group's epoch is ahead of it.

    There are none until `limits.assignment_interval_ms` after the last assignment. If that is 0, a
    large group waits for `LARGE_INTERVAL_MS`, and any other group does not wait.
    """
    if group.assignment_epoch >= group.epoch:
        return []
    interval_ms = limits.assignment_interval_ms
    # Without a wait, 1,000 members that join together would cause 1,000 assignments.
    if not interval_ms and len(group.members) > LARGE_MEMBERS:
        interval_ms = LARGE_INTERVAL_MS
    # The time of the last assignment may be from an earlier run, whose clock was ahead. A time in
    # the future holds nothing up.
    if group.assigned_at_ms and 0 <= now_ms - group.assigned_at_ms < interval_ms:
        return []
    return [
        *_changed_targets(group, topics, limits.assignors[0]),
        target_epoch_record(group.group_id, group.epoch, now_ms),
    ]


def _changed_targets(
    group: ConsumerGroup, topics: TopicImage, default_assignor: str
) -> Iterable[ConsumerGroupRecord]:
    existing = topics_read(group, topics)
    by_name = {topic.name: topic.topic_id for topic in existing.values()}
    # A set: to intersect two sets takes only the time of the smaller one.
    existing_names = frozenset(by_name)

    @cache  # Most members of a group read the same topics.
    def ids_of(names: frozenset[str]) -> frozenset[UUID]:
        return frozenset(by_name[name] for name in names & existing_names)

    readers = [
        Reader(
            member.member_id,
            member.instance_id,
            ids_of(group.names_of(member)),
            group.target(member.member_id),
        )
        for member in group.members.values()
    ]
    counts = {topic.topic_id: topic.partition_count for topic in existing.values()}
    # Members in a log from Apache Kafka may have asked for an assignor that is not here.
    assign = ASSIGNORS.get(group.preferred_assignor(default_assignor), ASSIGNORS[default_assignor])
    for member_id, target in assign(readers, counts).items():
        if member_id not in group.targets or target != group.targets[member_id]:
            yield target_record(group.group_id, member_id, target)
