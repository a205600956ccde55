"""Members leave: by LeaveGroup, or because a deadline has passed.

Call `expire` at `group.deadline_ms`. Too early is harmless: the deadline is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.groups.classic.group import ClassicGroup, GroupState
from coordinator.groups.classic.rebalance import (
    drop,
    on_join_deadline,
    prepare,
    prepare_or_complete,
)
from coordinator.groups.classic.requests import LeavingMember, Outcome
from wire.error_code import ErrorCode


def leave(
    group: ClassicGroup, leaving: Sequence[LeavingMember], now_ms: int
) -> tuple[list[ErrorCode], Outcome]:
    """Remove members, with one rebalance for all; return a code for each, in order.

    An administrator may name a static member by its instance id alone, with an empty member id.
    """
    group.check_alive()
    outcome = Outcome()
    member_count = len(group.members)
    members, pending = group.members, group.pending_members
    instances, unknown = group.static_members, ErrorCode.UNKNOWN_MEMBER_ID
    # No call for each stranger: an administrator may name a hundred thousand that have gone.
    codes = [
        unknown
        if each.member_id not in pending
        and (
            each.member_id not in members
            if each.group_instance_id is None
            else each.group_instance_id not in instances
        )
        else _leave_one(group, each, outcome)
        for each in leaving
    ]
    # A member id that was never used holds up a rebalance under way, and begins none.
    if len(group.members) < member_count or group.state is GroupState.PREPARING_REBALANCE:
        prepare_or_complete(group, now_ms, outcome)
    return codes, outcome


def _leave_one(group: ClassicGroup, leaving: LeavingMember, outcome: Outcome) -> ErrorCode:
    if group.drop_pending(leaving.member_id):
        return ErrorCode.NONE
    member_id = leaving.member_id
    if not member_id and leaving.group_instance_id is not None:
        member_id = group.static_members.get(leaving.group_instance_id, "")
    # Not `known`, which raises: one request may name a member many times, by a wrong id.
    code = group.code_of(member_id, leaving.group_instance_id)
    if code is ErrorCode.NONE:
        drop(group, member_id, outcome, ErrorCode.UNKNOWN_MEMBER_ID)
    return code


def expire(group: ClassicGroup, now_ms: int) -> Outcome:
    """Do what is due at `now_ms`. The result may be due at once: ask for the deadline again."""
    outcome = Outcome()
    if _remove_expired(group, now_ms, outcome) and group.state is not GroupState.EMPTY:
        prepare_or_complete(group, now_ms, outcome)
    if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
        on_join_deadline(group, now_ms, outcome)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
        _remove_unsynced(group, now_ms, outcome)
    group.reckon_wake()
    return outcome


def _remove_expired(group: ClassicGroup, now_ms: int, outcome: Outcome) -> bool:
    """Remove the members whose sessions have ended; return whether a rebalance must follow."""
    unused = [key for key, deadline in group.pending_members.items() if deadline <= now_ms]
    for member_id in unused:
        group.drop_pending(member_id)
    silent = [
        member.member_id
        for member in group.members.values()
        if member.session_counts and member.session_deadline_ms <= now_ms
    ]
    for member_id in silent:
        drop(group, member_id, outcome, ErrorCode.UNKNOWN_MEMBER_ID)
    # A member id that was never used holds up a rebalance under way, and begins none.
    return bool(silent) or (bool(unused) and group.state is GroupState.PREPARING_REBALANCE)


def _remove_unsynced(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Remove the members that joined this generation and never asked for their assignment."""
    for member_id in sorted(group.pending_syncs):
        drop(group, member_id, outcome, ErrorCode.UNKNOWN_MEMBER_ID)
    prepare(group, now_ms, outcome)
