"""What time does to a group: sessions, unused member ids, rebalances and syncs that take too long.

Call `expire` at `group.deadline_ms`. Too early is harmless: the deadline is a lower bound.
"""

from __future__ import annotations

from coordinator.groups.classic.exchange import Outcome
from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.classic.rebalance import (
    drop,
    on_join_deadline,
    prepare,
    prepare_or_complete,
)
from coordinator.groups.classic.state import GroupState
from wire.error_code import ErrorCode


def expire(group: ClassicGroup, now_ms: int) -> Outcome:
    """Do what is due at `now_ms`. What that brings about may be due at once: ask again."""
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
    """Remove who has not been heard of for a session timeout. True: somebody was removed."""
    unused = [key for key, deadline in group.pending_members.items() if deadline <= now_ms]
    for member_id in unused:
        del group.pending_members[member_id]
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
    """Some members joined this generation and never asked for their assignment."""
    for member_id in sorted(group.pending_syncs):
        drop(group, member_id, outcome, ErrorCode.UNKNOWN_MEMBER_ID)
    prepare(group, now_ms, outcome)
