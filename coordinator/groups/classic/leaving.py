"""LeaveGroup: members go by their own will, or an administrator's."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.groups.classic.exchange import LeavingMember, Outcome
from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.classic.rebalance import drop, prepare_or_complete
from coordinator.groups.classic.state import GroupState
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def leave(
    group: ClassicGroup, leaving: Sequence[LeavingMember], now_ms: int
) -> tuple[list[ErrorCode], Outcome]:
    """Remove members; one rebalance for all of them. Returns a code for each, in order.

    An administrator may name a static member by its instance id alone, with an empty member id.
    """
    if group.state is GroupState.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{group.group_id} is deleted")
    outcome = Outcome()
    member_count = len(group.members)
    codes = [_leave_one(group, member, outcome) for member in leaving]
    # A member id that was never used holds up a rebalance under way, and begins none.
    if len(group.members) < member_count or group.state is GroupState.PREPARING_REBALANCE:
        prepare_or_complete(group, now_ms, outcome)
    return codes, outcome


def _leave_one(group: ClassicGroup, leaving: LeavingMember, outcome: Outcome) -> ErrorCode:
    if group.pending_members.pop(leaving.member_id, None) is not None:
        return ErrorCode.NONE
    member_id = leaving.member_id
    if not member_id and leaving.group_instance_id is not None:
        member_id = group.static_members.get(leaving.group_instance_id, "")
    try:
        group.known(member_id, leaving.group_instance_id)
    except KafkaError as refusal:
        return refusal.code
    drop(group, member_id, outcome, ErrorCode.UNKNOWN_MEMBER_ID)
    return ErrorCode.NONE
