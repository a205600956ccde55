"""What a fault is, and which requests it meets. Pure: no I/O, no clock.

Faults are asked in the order in which they came. Delays add up; the first of any other kind has the
request for itself, so that two of a kind come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from wire.error_code import ErrorCode

#: The client id of the test library itself, which looks at topics while faults are armed. No fault
#: meets it.
OWN_CLIENT_ID = "magnetar-testing"
#: Moments within a transaction's end, asked for by a producer or by a timeout.
MARKING = "end_txn.marking"
DECIDED = "end_txn.decided"
_OF_COMMITS = frozenset({MARKING, DECIDED})


class Kind(StrEnum):
    """What befalls a request."""

    FAIL = "fail"
    """It is answered with an error."""
    DELAY = "delay"
    """It waits, and the requests behind it on its connection with it."""
    LOSE_REQUEST = "lose_request"
    """Nothing happens, and there is no answer."""
    LOSE_ANSWER = "lose_answer"
    """All happens, and there is no answer."""
    DISCONNECT = "disconnect"
    """It is answered, and its connection is closed then."""
    KILL = "kill_at"
    """The process is killed."""


class Named(NamedTuple):
    """What a request names."""

    topics: Set[str] = frozenset()
    groups: Set[str] = frozenset()
    transactional_ids: Set[str] = frozenset()


@dataclass(kw_only=True)
class Fault:
    """One fault. None for what it does not care about."""

    id: int
    kind: Kind
    api_key: int | None = None
    topic: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    client_id: str | None = None
    skip: int = 0
    """So many requests that it would meet go by first."""
    times: int | None = None
    """How many requests it meets; None: all."""
    error: ErrorCode = ErrorCode.NONE
    is_applied: bool = False
    """FAIL: whether the request has its effect all the same."""
    is_silent: bool = False
    """LOSE_*: whether the connection stays open, and the client waits until it gives up."""
    seconds: float = 0.0
    point: str = ""
    """KILL: where."""
    hits: int = field(default=0, init=False)
    passed: int = field(default=0, init=False)
    """How many have gone by."""

    @property
    def needs_names(self) -> bool:
        """Whether it matters what the request names."""
        return not (self.topic is None and self.group is None and self.transactional_id is None)

    @property
    def is_spent(self) -> bool:
        """Whether it meets no request any more."""
        return self.times is not None and self.hits >= self.times

    def meets(self, api_key: int, client_id: str | None, named: Callable[[], Named]) -> bool:
        """Return whether a request is one that this fault is for."""
        if self.is_spent or self.api_key not in (None, api_key) or client_id == OWN_CLIENT_ID:
            return False
        if self.client_id is not None and self.client_id != client_id:
            return False
        if not self.needs_names:
            return True
        names = named()
        return (
            (self.topic is None or self.topic in names.topics)
            and (self.group is None or self.group in names.groups)
            and (self.transactional_id is None or self.transactional_id in names.transactional_ids)
        )

    def hit(self) -> bool:
        """Count a request that it meets; False: one of those that go by."""
        if self.passed < self.skip:
            self.passed += 1
            return False
        self.hits += 1
        return True


class Plan(NamedTuple):
    """What befalls one request."""

    delay_s: float = 0.0
    fault: Fault | None = None


NOTHING = Plan()


class Faults:
    """The faults of a broker, in the order in which they came."""

    def __init__(self, hit: Callable[[Fault], bool] = Fault.hit) -> None:
        """`hit` counts a request that a fault meets, as `Fault.hit`: over several nodes at once."""
        self._faults: dict[int, Fault] = {}
        self._next_id = 1
        self._hit = hit

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults.values())

    def next_id(self) -> int:
        """Return an id for a new fault."""
        self._next_id += 1
        return self._next_id - 1

    def arm(self, fault: Fault) -> None:
        """Let a fault meet requests from here on."""
        self._faults[fault.id] = fault

    def disarm(self, fault_id: int) -> int:
        """Forget a fault; return how many requests it has met, and how many went by before."""
        fault = self._faults.pop(fault_id, None)
        return 0 if fault is None else fault.hits + fault.passed

    def hits(self) -> dict[str, int]:
        """Return how many requests each fault has met, with those that went by before.

        By its id, as text: keys of JSON are.
        """
        return {str(fault.id): fault.hits + fault.passed for fault in self}

    def api_keys(self) -> Set[int] | None:
        """Return the APIs that faults wait for; None: all of them."""
        waiting = [fault for fault in self if not fault.is_spent and fault.point not in _OF_COMMITS]
        if any(fault.api_key is None for fault in waiting):
            return None
        return {fault.api_key for fault in waiting if fault.api_key is not None}

    def plan(self, api_key: int, client_id: str | None, named: Callable[[], Named]) -> Plan:
        """Return what befalls a request that has arrived, and count it."""
        delay_s = 0.0
        for fault in self:
            if fault.point in _OF_COMMITS or not fault.meets(api_key, client_id, named):
                continue
            if not self._hit(fault):
                continue
            if fault.kind is not Kind.DELAY:
                return Plan(delay_s, fault)
            delay_s += fault.seconds
        return Plan(delay_s) if delay_s else NOTHING

    def at_commit(self, point: str, transactional_ids: Set[str]) -> Fault | None:
        """Return the fault that waits for a moment of a commit, and count it; None: none does."""
        named = Named(transactional_ids=transactional_ids)
        for fault in self:
            if fault.point == point and fault.meets(-1, None, lambda: named) and self._hit(fault):
                return fault
        return None
