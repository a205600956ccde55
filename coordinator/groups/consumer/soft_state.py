"""When members of a consumer group are given up: nothing here is in the log.

Every member has a session, which each heartbeat restarts. A member that is asked to give
partitions back has its own rebalance timeout to do so. A classic member that must join again, or
fetch its assignment, has it too. Deadlines are not kept in order: `wake_ms` is a lower bound of all
of them, a heartbeat leaves it alone, and an `expired` that comes too early puts it where it
belongs.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from coordinator.groups.consumer.member import Assigned, as_target
from coordinator.groups.consumer.requests import HeartbeatAnswer, HeartbeatRequest


class Wait(Enum):
    """What a member is waited for; the value says what it did not do."""

    SESSION = "sent no heartbeat for its session timeout"
    REVOCATION = "did not give partitions back within its rebalance timeout"
    JOIN = "did not join again within its rebalance timeout"
    SYNC = "did not ask for its assignment within its rebalance timeout"


class Expired(NamedTuple):
    """A member that is given up."""

    member_id: str
    wait: Wait


class Timers:
    """The deadlines of one group's members."""

    __slots__ = ("_deadlines", "_wake_ms")

    def __init__(self) -> None:
        self._deadlines: dict[Wait, dict[str, int]] = {wait: {} for wait in Wait}
        self._wake_ms: int | None = None

    @property
    def wake_ms(self) -> int | None:
        """When to ask for `expired`: the earliest deadline, or earlier. None: there is none."""
        return self._wake_ms

    def set(self, wait: Wait, member_id: str, deadline_ms: int) -> None:
        """Wait for the member until then, whatever was before. O(1)."""
        self._deadlines[wait][member_id] = deadline_ms
        if self._wake_ms is None or deadline_ms < self._wake_ms:
            self._wake_ms = deadline_ms

    def has(self, wait: Wait, member_id: str) -> bool:
        return member_id in self._deadlines[wait]

    def clear(self, wait: Wait, member_id: str) -> None:
        self._deadlines[wait].pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        for deadlines in self._deadlines.values():
            deadlines.pop(member_id, None)

    def expired(self, now_ms: int) -> list[Expired]:
        """Return who is to be given up, each once. O(members); the bound is reckoned anew."""
        found: dict[str, Expired] = {}
        for wait, deadlines in self._deadlines.items():
            for member_id, deadline_ms in deadlines.items():
                if deadline_ms <= now_ms:
                    found.setdefault(member_id, Expired(member_id, wait))
        self._wake_ms = min(
            (deadline for each in self._deadlines.values() for deadline in each.values()),
            default=None,
        )
        return list(found.values())


#: A client reads the answer of one heartbeat, and says what it owns with the next.
HEARTBEATS_UNTIL_AGAIN = 3


class Acknowledging:
    """The members of one group that have been told of partitions and not said that they own them.

    At most one entry for each member; `forget` those that go.
    """

    __slots__ = ("_told_at_ms",)

    def __init__(self) -> None:
        self._told_at_ms: dict[str, int] = {}

    def answered(
        self, request: HeartbeatRequest, answer: HeartbeatAnswer, assigned: Assigned, now_ms: int
    ) -> HeartbeatAnswer:
        """Return what to answer to the request of a member that has `assigned` now: `answer`, with
        the assignment if it is time to tell that again. O(partitions) only where it says or is told
        something.
        """
        member_id = answer.member_id
        if request.owned is not None and request.owned == as_target(assigned):
            self._told_at_ms.pop(member_id, None)
            return answer
        if answer.assignment is None:
            told_at_ms = self._told_at_ms.get(member_id)
            patience_ms = HEARTBEATS_UNTIL_AGAIN * answer.heartbeat_interval_ms
            if told_at_ms is None or now_ms - told_at_ms < patience_ms:
                return answer
            answer = replace(answer, assignment=assigned)
        self._told_at_ms[member_id] = now_ms
        return answer

    def forget(self, member_id: str) -> None:
        self._told_at_ms.pop(member_id, None)
