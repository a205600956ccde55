"""SyncGroup: the leader brings the assignment, everyone else waits for it or fetches it."""

from __future__ import annotations

from coordinator.groups.classic.exchange import Outcome, SyncAnswer, SyncRequest, Token
from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.classic.member import Member
from coordinator.groups.classic.state import GroupState
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def sync(group: ClassicGroup, request: SyncRequest, now_ms: int, token: Token) -> Outcome:
    """Take a SyncGroup request: answered in the outcome, or parked until the leader's comes.

    Refuses with UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL (KIP-559), REBALANCE_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
    """
    member = _validated(group, request)
    outcome = Outcome()
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        group.sync_deadline_ms = None
    if group.state is GroupState.STABLE:
        group.restart_session(member, now_ms)
        outcome.answer(token, _assigned(group, member))
        return outcome
    superseded, member.syncing = member.syncing, token
    if superseded is not None:
        outcome.answer(superseded, SyncAnswer(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    if member.member_id == group.leader:
        _assign(group, request.assignments, now_ms, outcome)
    return outcome


def _validated(group: ClassicGroup, request: SyncRequest) -> Member:
    if group.state is GroupState.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{group.group_id} is deleted")
    member = group.known(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"{group.group_id} is at generation {group.generation_id}, not {request.generation_id}",
        )
    if request.protocol_type not in (None, group.protocol_type) or (
        request.protocol_name not in (None, group.protocol_name)
    ):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{group.group_id} speaks {group.protocol_type} {group.protocol_name}",
        )
    if group.state is GroupState.PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")
    assert group.state is not GroupState.EMPTY, "an empty group knows no member"
    return member


def _assign(
    group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, outcome: Outcome
) -> None:
    """The group is stable: everyone has an assignment, if only an empty one."""
    group.transition(GroupState.STABLE, now_ms)
    outcome.changed = True
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        token, member.syncing = member.syncing, None
        if token is not None:
            outcome.answer(token, _assigned(group, member))
            group.restart_session(member, now_ms)


def _assigned(group: ClassicGroup, member: Member) -> SyncAnswer:
    return SyncAnswer(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
