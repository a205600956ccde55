"""Which timers a member of a consumer group has, and when the broker removes the member.

| timer | starts when the member | runs for | stops when the member |
|---|---|---|---|
| SESSION | sends any request | the group's session timeout (classic: its own) | |
| REVOCATION | is asked to give partitions back | its rebalance timeout | has none to give back |
| JOIN (classic) | is told to join again | its rebalance timeout | joins |
| SYNC (classic) | has joined | its rebalance timeout | fetches its assignment |

No timer is in the log: after a restart every timer of a member begins anew. Deadlines are not
sorted. `wake_ms` is a lower bound of all deadlines. A heartbeat moves the member's deadline and not
the bound, so `expired` may be called too early; it then computes the bound anew. Source: KIP-848.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from coordinator.groups.consumer.member import Member, MemberState


class MemberTimer(Enum):
    """A timer of a member. The value says what a member whose timer ran out did not do."""

    SESSION = "sent no heartbeat for its session timeout"
    REVOCATION = "did not give partitions back within its rebalance timeout"
    JOIN = "did not join again within its rebalance timeout"
    SYNC = "did not ask for its assignment within its rebalance timeout"


class Expired(NamedTuple):
    """A member to remove, and the timer that ran out."""

    member_id: str
    timer: MemberTimer


class Timers:
    """The deadlines of one group's members."""

    # One table for each timer: every member has a session, but few have another timer.
    __slots__ = ("_deadlines", "_wake_ms")

    def __init__(self) -> None:
        self._deadlines: dict[MemberTimer, dict[str, int]] = {timer: {} for timer in MemberTimer}
        self._wake_ms: int | None = None

    @property
    def wake_ms(self) -> int | None:
        """When to call `expired`: the earliest deadline, or earlier. None: there is no deadline."""
        return self._wake_ms

    # --- the rules

    def on_heartbeat(
        self, before: Member | None, member: Member, session_timeout_ms: int, now_ms: int
    ) -> None:
        """Set the timers after a heartbeat or a join, which changed `before` into `member`. O(1).

        `before` is None after a restart: then a member that has to give partitions back gets the
        whole time for it.
        """
        member_id = member.member_id
        if member.classic is not None:
            self.on_classic_heartbeat(member, now_ms)
            self._stop(MemberTimer.REVOCATION, member_id)
            return
        # The member may have used the classic protocol before, and have these timers.
        self._stop(MemberTimer.JOIN, member_id)
        self._stop(MemberTimer.SYNC, member_id)
        self._start(MemberTimer.SESSION, member_id, now_ms + session_timeout_ms)
        # An absent static member keeps this state, but has no partition left to give back.
        if member.state is not MemberState.UNREVOKED_PARTITIONS or not member.revoking:
            self._stop(MemberTimer.REVOCATION, member_id)
        elif before is None or before.revoking != member.revoking:
            # Only a new set of partitions starts the timer anew: a heartbeat alone does not.
            self._start(MemberTimer.REVOCATION, member_id, now_ms + member.rebalance_timeout_ms)

    def on_absence(self, member_id: str) -> None:
        """A static member has left for a while. Its session timer alone runs on."""
        self._stop(MemberTimer.REVOCATION, member_id)

    def on_classic_join(self, member: Member, now_ms: int) -> None:
        """A classic member has joined: start its SYNC timer. Call `on_heartbeat` first."""
        self._stop(MemberTimer.JOIN, member.member_id)
        self._start(MemberTimer.SYNC, member.member_id, now_ms + member.rebalance_timeout_ms)

    def on_classic_sync(self, member: Member, now_ms: int) -> None:
        """A classic member has fetched its assignment."""
        self._stop(MemberTimer.SYNC, member.member_id)
        self.on_classic_heartbeat(member, now_ms)

    def on_classic_heartbeat(self, member: Member, now_ms: int) -> None:
        """A classic member has sent a heartbeat. O(1)."""
        assert member.classic is not None
        self._start(
            MemberTimer.SESSION, member.member_id, now_ms + member.classic.session_timeout_ms
        )

    def on_told_to_join(self, member: Member, now_ms: int) -> None:
        """A classic member is told to join again: start its JOIN timer, unless the timer runs."""
        if member.member_id not in self._deadlines[MemberTimer.JOIN]:
            self._start(MemberTimer.JOIN, member.member_id, now_ms + member.rebalance_timeout_ms)

    def forget(self, member_id: str) -> None:
        """Stop all timers of a member that is gone."""
        for timer in MemberTimer:
            self._stop(timer, member_id)

    def expired(self, now_ms: int) -> list[Expired]:
        """Return the members to remove, each once, and compute `wake_ms` anew. O(members)."""
        found: dict[str, Expired] = {}
        for timer, deadlines in self._deadlines.items():
            for member_id, deadline_ms in deadlines.items():
                # A member of which two timers ran out is returned once, with the first of the two.
                if deadline_ms <= now_ms:
                    found.setdefault(member_id, Expired(member_id, timer))
        self._wake_ms = min(
            (deadline for each in self._deadlines.values() for deadline in each.values()),
            default=None,
        )
        return list(found.values())

    # ---

    def _start(self, timer: MemberTimer, member_id: str, deadline_ms: int) -> None:
        self._deadlines[timer][member_id] = deadline_ms
        if self._wake_ms is None or deadline_ms < self._wake_ms:
            self._wake_ms = deadline_ms

    def _stop(self, timer: MemberTimer, member_id: str) -> None:
        self._deadlines[timer].pop(member_id, None)
