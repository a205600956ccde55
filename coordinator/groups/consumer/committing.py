"""Who may commit offsets for a consumer group, and who may read them as a member of it."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import Member
from wire.error_code import ErrorCode
from wire.errors import KafkaError


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
    """Return if whoever says this may commit for these partitions, else raise.

    A negative epoch is an administrator: while the group has no members. In a transaction who says
    nothing of himself may always commit. Members commit with their epoch (UNKNOWN_MEMBER_ID,
    STALE_MEMBER_EPOCH), or an older one for partitions that they have had since then (KIP-1251).
    UNSUPPORTED_VERSION for a member that does not `knows_member_epochs` (OffsetCommit v9+).
    A stale member is ILLEGAL_GENERATION for classic members, and in transactions.
    """
    if member_epoch < 0 and not group.members:
        return
    if transactional and member_epoch == -1 and not member_id and group_instance_id is None:
        return
    member = group.member(member_id)
    if not transactional and member.classic is None and not knows_member_epochs:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group"
            " protocol",
        )
    stale = _stale_code(member, transactional=transactional)
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
    """Return if whoever says this may read the group's offsets, else raise.

    Without a member id: an administrator, or a client that does not say. UNKNOWN_MEMBER_ID,
    STALE_MEMBER_EPOCH, of classic members ILLEGAL_GENERATION.
    """
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.epoch:
        raise KafkaError(
            _stale_code(member, transactional=False),
            f"The received member epoch {member_epoch} does not match the expected member epoch"
            f" {member.epoch}.",
        )


def _check_held_since(
    member: Member, member_epoch: int, topic_id: UUID, partition: int, stale: ErrorCode
) -> None:
    held_since = member.assigned.get(topic_id, {}).get(partition)
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


def _stale_code(member: Member, *, transactional: bool) -> ErrorCode:
    if transactional or member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
