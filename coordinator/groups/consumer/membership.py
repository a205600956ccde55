"""Who may speak for a member, commit or leave: ids, instance ids and epochs. Source: KIP-848.

A heartbeat with epoch 0 joins, whatever the member was before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Member,
    Owned,
    as_target,
    is_subset,
    with_epoch,
)
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    assignment_record,
    member_tombstones,
    subscription_record,
    target_epoch_record,
    target_record,
)
from coordinator.groups.consumer.requests import ConsumerLimits, HeartbeatRequest
from coordinator.groups.consumer.subscription import TopicImage, next_epoch, unused_regexes
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def check_room(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    """Raise GROUP_MAX_SIZE_REACHED for a newcomer to a full group."""
    # A member that rejoins takes no more room than it has.
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def speaking_member(
    group: ConsumerGroup, request: HeartbeatRequest, limits: ConsumerLimits
) -> tuple[Member, list[ConsumerGroupRecord]]:
    """Return the member that sent a heartbeat, new or known, and the records that make it so.

    Refuses with GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID,
    UNRELEASED_INSTANCE_ID.
    """
    check_room(group, request.member_id, limits.size_max)
    member_id = request.member_id or request.new_member_id
    joins = request.member_epoch == JOINING
    if request.instance_id is None:
        member = group.members.get(member_id) if joins else group.member(member_id)
        member = member or Member(member_id=member_id)
        check_epoch(member, request.member_epoch, request.owned)
        return member, []
    if not joins:
        member = group.static_member(request.instance_id, member_id)
        check_epoch(member, request.member_epoch, request.owned)
        return member, []
    holder = group.static_members.get(request.instance_id)
    if holder is None:
        return group.members.get(member_id) or Member(member_id=member_id), []
    old = group.members[holder]
    # A classic member cannot say that it leaves for a while: it may be replaced at any time.
    if old.classic is None and old.epoch != LEAVING_FOR_A_WHILE:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {request.instance_id} cannot join the"
            f" group because the instance id is owned by {holder} member.",
        )
    return replaced(group, old, member_id)


def replaced(
    group: ConsumerGroup, old: Member, member_id: str
) -> tuple[Member, list[ConsumerGroupRecord]]:
    """Return the member that takes a static member's place, and the records of the change."""
    group_id = group.group_id
    member = replace(old, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
    # The new id inherits target and partitions, so a restart moves nothing.
    return member, [
        *member_tombstones(group_id, old.member_id),
        subscription_record(group_id, member),
        target_record(group_id, member_id, group.target(old.member_id)),
        assignment_record(group_id, member),
    ]


def check_epoch(member: Member, epoch: int, owned: Owned | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member may speak with `epoch`.

    The epoch before is accepted too, while the member owns nothing beyond what it has been given:
    an answer may have been lost.
    """
    if epoch in (JOINING, member.epoch):
        return
    if epoch > member.epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by"
            f" the group coordinator ({member.epoch}). The member must abandon all its partitions"
            " and rejoin.",
        )
    if epoch != member.previous_epoch or owned is None or not is_subset(owned, member.assigned):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by"
            f" the group coordinator ({member.epoch}). The member must abandon all its partitions"
            " and rejoin.",
        )


def leaving_member(group: ConsumerGroup, request: HeartbeatRequest) -> Member:
    """Return the member that leaves with a heartbeat. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if request.instance_id is None:
        return group.member(request.member_id)
    return group.static_member(request.instance_id, request.member_id)


def decide_absence(group: ConsumerGroup, member: Member) -> list[ConsumerGroupRecord]:
    """Return the record of a static member that leaves for a while (epoch -2).

    The member keeps its place and its partitions until its session ends.
    """
    absent = replace(
        member,
        epoch=LEAVING_FOR_A_WHILE,
        # The next incarnation may commit for these partitions at any epoch.
        assigned=with_epoch(as_target(member.assigned), 0),
        revoking={},
    )
    return [assignment_record(group.group_id, absent)]


def decide_removal(
    group: ConsumerGroup, member_ids: Iterable[str], topics: TopicImage
) -> list[ConsumerGroupRecord]:
    """Return the records of a group without these members, at its next epoch.

    Their partitions are free at once; the next heartbeat decides which members get them.
    """
    draft = Draft(group)
    for member_id in member_ids:
        draft.add(member_tombstones(group.group_id, member_id))
    draft.add(unused_regexes(draft.group))
    # The epoch rises also where the rest reads the same: the partitions are to be given anew.
    draft.add(next_epoch(draft.group, topics, changed=True))
    if not draft.group.members:
        # An empty group is assigned: its next member waits for no assignment interval.
        draft.add([target_epoch_record(group.group_id, draft.group.epoch, 0)])
    return draft.records


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    member_epoch: int,
    group_instance_id: str | None,
    partitions: Iterable[tuple[UUID, int]],
    *,
    transactional: bool,
    knows_member_epochs: bool,
) -> None:
    """Return if the sender may commit for these partitions, else raise.

    A negative epoch is an administrator's, who may commit while the group has no members. In a
    transaction a sender that names neither member nor instance may always commit. Members commit
    with their epoch (UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH), or with an older one for partitions
    that they have had since then (KIP-1251). A stale epoch of a classic member is
    ILLEGAL_GENERATION.

    `knows_member_epochs`: the request's version has them (OffsetCommit v9+, TxnOffsetCommit v6+).
    Without it a member of the consumer protocol gets UNSUPPORTED_VERSION, or in a transaction
    ILLEGAL_GENERATION for a stale epoch.
    """
    if member_epoch < 0 and not group.members:
        return
    # TxnOffsetCommit up to v2 has no fields for members (KIP-447).
    if transactional and member_epoch == -1 and not member_id and group_instance_id is None:
        return
    member = group.member(member_id)
    if not transactional and member.classic is None and not knows_member_epochs:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group"
            " protocol",
        )
    stale = _stale_code(member, knows_member_epochs=knows_member_epochs)
    if member_epoch > member.epoch:
        raise KafkaError(
            stale,
            f"Received member epoch {member_epoch} is newer than current member epoch"
            f" {member.epoch}.",
        )
    if member_epoch < member.epoch:
        for topic_id, partition in partitions:
            _check_held_since(member, member_epoch, topic_id, partition, stale)


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    """Return if the sender may read the group's offsets, else raise.

    A sender without a member id is an administrator, or a client that does not say. Members are
    checked: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION of classic members.
    """
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.epoch:
        raise KafkaError(
            _stale_code(member, knows_member_epochs=True),
            f"The received member epoch {member_epoch} does not match the expected member epoch"
            f" {member.epoch}.",
        )


def _check_held_since(
    member: Member, member_epoch: int, topic_id: UUID, partition: int, stale: ErrorCode
) -> None:
    held_since = member.assigned.get(topic_id, {}).get(partition)
    # A partition that the member gives back is read, and committed, until it is given back.
    if held_since is None:
        held_since = member.revoking.get(topic_id, {}).get(partition)
    if held_since is None:
        raise KafkaError(stale, f"Partition {partition} of {topic_id} is not the member's.")
    if member_epoch < held_since:
        raise KafkaError(
            stale,
            f"Received member epoch {member_epoch} is older than the epoch {held_since} at which"
            f" the member was given partition {partition} of {topic_id}.",
        )


def _stale_code(member: Member, *, knows_member_epochs: bool) -> ErrorCode:
    if not knows_member_epochs or member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
