"""Who may speak for a member: ids, instance ids and epochs, and who takes whose place.

Source: KIP-848. A heartbeat with epoch 0 joins, whatever the member was before.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.groups.consumer.exchange import HeartbeatRequest
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import JOINING, LEAVING_FOR_A_WHILE, Member
from coordinator.groups.consumer.partitions import Owned, is_subset
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    assignment_record,
    member_tombstones,
    subscription_record,
    target_record,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def check_room(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    """Raise GROUP_MAX_SIZE_REACHED for who is no member of a full group."""
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def speaking_member(
    group: ConsumerGroup, request: HeartbeatRequest
) -> tuple[Member, list[ConsumerGroupRecord]]:
    """Return the member that a heartbeat is from, new or known, and what makes it so.

    Refuses with UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID,
    UNRELEASED_INSTANCE_ID.
    """
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
    """Return the member that takes a static member's place, and the records of that."""
    group_id = group.group_id
    member = replace(old, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
    return member, [
        *member_tombstones(group_id, old.member_id),
        subscription_record(group_id, member),
        target_record(group_id, member_id, group.target(old.member_id)),
        assignment_record(group_id, member),
    ]


def check_epoch(member: Member, epoch: int, owned: Owned | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member may speak with `epoch`.

    The epoch before is taken too, while it owns nothing that it has not been given: an answer may
    have been lost.
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
