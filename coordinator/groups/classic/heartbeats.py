"""Heartbeat, and the check that a commit comes from a member of the current generation."""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup, GroupState
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def heartbeat(
    group: ClassicGroup,
    member_id: str,
    generation_id: int,
    group_instance_id: str | None,
    now_ms: int,
) -> None:
    """Restart the member's session. O(1), and nothing is written.

    Refuses with UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    COORDINATOR_NOT_AVAILABLE. REBALANCE_IN_PROGRESS restarts the session all the same: the member
    lives, and shall join again.
    """
    group.check_alive()
    member = group.known(member_id, group_instance_id)
    group.check_generation(generation_id)
    group.restart_session(member, now_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")


def check_commit(
    group: ClassicGroup,
    member_id: str,
    generation_id: int,
    group_instance_id: str | None,
    *,
    transactional: bool,
) -> None:
    """Return if the sender may commit offsets, else raise.

    A generation of -1 without a member id and an instance id is a consumer that assigns partitions
    to itself. Such a consumer may commit while the group has no members (else UNKNOWN_MEMBER_ID),
    and in a transaction always, since TxnOffsetCommit up to v2 could not say more (KIP-447).
    Members are fenced by id, instance and generation in both cases. Between JoinGroup and SyncGroup
    a plain commit is answered REBALANCE_IN_PROGRESS.
    """
    # An administrator's tool resets offsets this way, while no member reads.
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return
    group.check_alive()
    if generation_id >= 0 or member_id or group_instance_id is not None:
        group.known(member_id, group_instance_id)
        group.check_generation(generation_id)
    elif not transactional:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id} has members, and this is none of them"
        )
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} has no assignment yet")


def keep_alive(group: ClassicGroup, member_id: str, now_ms: int) -> None:
    """Restart the session of a member that commits: a commit is a sign of life."""
    member = group.members.get(member_id)
    # While a generation completes the wait for SyncGroup has a deadline of its own.
    if member is not None and group.state in (
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
    ):
        group.restart_session(member, now_ms)
