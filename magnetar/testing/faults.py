"""Faults as tests hold them: what was asked for, and how often it has happened.

A fault outlives the process that it was armed in: the next start arms what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypedDict

from magnetar.testing.link import BrokerGone

_TEXTS = ("api", "error", "point", "topic", "group", "transactional_id", "client_id")


class FaultNeverFired(AssertionError):
    """A fault was armed and did not happen, or not as often: the test has not tested it."""


class Which(TypedDict, total=False):
    """Which requests meet a fault: those that name all of these, or come from there."""

    topic: str
    group: str
    transactional_id: str
    client_id: str
    times: int | None
    """How many; None for all. One, unless the fault says otherwise."""
    skip: int
    """How many go by first."""


class Fault:
    """One armed fault. A context manager: the end of the block takes the fault away."""

    def __init__(
        self,
        call: Callable[..., Any],
        wanted: dict[str, Any],
        until_ended: Callable[[], object] | None = None,
    ) -> None:
        """`call` asks the broker. `wanted` are its arguments of `arm`; None is left out.

        `until_ended`: of a fault that ends the broker, waits for that. Raises ValueError for
        what no request could meet.
        """
        _check(wanted)
        self._call = call
        self._until_ended = until_ended
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        #: The hits in brokers that have ended since: a restart arms what is left.
        self._hits_before = 0
        #: How many are to go by in the broker that runs, and how many it says that came at all.
        self._skip: int = wanted.get("skip", 0)
        self._met = 0
        self._id: int | None = None
        self.is_removed = False
        #: Whether the end of its block has said what there is to say of it.
        self._is_checked = False

    def __str__(self) -> str:
        kind = self._wanted["kind"]
        what = self._wanted.get("point") or self._wanted.get("api") or "any request"
        names = ("error", "topic", "group", "transactional_id", "client_id", "seconds", "skip")
        rest = [f"{name}={self._wanted[name]}" for name in names if self._wanted.get(name)]
        return " ".join([f"{kind} {what}", *rest])

    @property
    def hits(self) -> int:
        """How many requests it has met."""
        if self._id is not None:
            # Else what is known is from its last words, or from before its end.
            with suppress(BrokerGone):
                self._met = self._call("hits").get(str(self._id), self._met)
        return self._hits_before + max(self._met - self._skip, 0)

    @property
    def hits_wanted(self) -> int:
        """How many it should meet at least."""
        times: int = self._wanted.get("times", 1)
        return times

    def wait(self, hits: int = 1, timeout_s: float = 30.0) -> int:
        """Return the hits, once there are so many. Raises FaultNeverFired.

        For `kill_at`: once the process has ended.
        """
        if self.hits < hits:
            try:
                left = hits - self._hits_before + self._skip
                self._call("wait_for_hits", fault=self._id, hits=left, timeout_s=timeout_s)
            except BrokerGone:
                return self.hits  # Its last words say how many there were.
            except TimeoutError:
                raise FaultNeverFired(
                    f"{self}: {self.hits} of {hits} times within {timeout_s:g} s"
                ) from None
        if self._until_ended is not None:
            self._until_ended()
        return self.hits

    def remove(self) -> None:
        """Let it meet no request any more. A broker that stands still is asked again later."""
        self.is_removed = True
        if self._id is not None:
            with suppress(BrokerGone):
                self._met = self._call("disarm", fault=self._id)
                self._id = None

    def check(self) -> None:
        """Raise FaultNeverFired, unless it has happened as often as it was to."""
        if not self._is_checked and self.hits < self.hits_wanted:
            times = f"{self.hits} of {self.hits_wanted} times" if self.hits_wanted > 1 else "never"
            raise FaultNeverFired(f"{self}: {times} fired, so this test has not tested it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self.remove()
        try:
            if raised is None:
                self.check()
        finally:
            self._is_checked = True

    # --- for the broker that it belongs to

    def arm(self) -> None:
        """Arm what is left of it. Raises ValueError for a name that there is not."""
        wanted = dict(self._wanted)
        if "times" in wanted:
            wanted["times"] -= self._hits_before
        if "skip" in wanted:
            wanted["skip"] = self._skip
        if not self.is_removed and wanted.get("times", 1) > 0:
            self._id = self._call("arm", **wanted)

    def on_end(self, hits: dict[str, int]) -> None:
        """Note the end of the broker's process, and what it has said of hits."""
        met = hits.get(str(self._id), self._met)
        self._hits_before += max(met - self._skip, 0)
        self._skip = max(self._skip - met, 0)
        self._met = 0
        self._id = None


class Faults:
    """The faults of one broker, since it was made or reset."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """`call` asks the broker."""
        self._call = call
        self._all: list[Fault] = []

    def __str__(self) -> str:
        return ", ".join(str(fault) for fault in self._all if not fault.is_removed)

    def arm(self, wanted: dict[str, Any], until_ended: Callable[[], object] | None = None) -> Fault:
        """Arm one more, and return it. Arguments as of `Fault`."""
        fault = Fault(self._call, wanted, until_ended)
        fault.arm()
        self._all.append(fault)
        return fault

    def arm_again(self) -> None:
        """Arm what is left of each, in a broker that has just started."""
        for fault in self._all:
            fault.arm()

    def ask_for_hits(self) -> None:
        """Ask how often each has happened: the broker may say no more."""
        with suppress(BrokerGone):
            for fault in self._all:
                fault.hits  # noqa: B018  # the fault remembers them

    def on_end(self, hits: dict[str, int]) -> None:
        """Note the end of the broker's process, and what it has said of hits."""
        for fault in self._all:
            fault.on_end(hits)

    def remove_again(self) -> None:
        """Ask the broker once more to take away what was removed."""
        for fault in self._all:
            if fault.is_removed:
                fault.remove()

    def check(self) -> None:
        """Raise FaultNeverFired for the first that has not happened as often as it was to."""
        for fault in self._all:
            fault.check()

    def clear(self) -> None:
        """Take every one away, and forget it."""
        for fault in self._all:
            fault.remove()
        self._all.clear()


def check_names(names: Mapping[str, Any], *, may_lack: bool = True) -> None:
    """Raise ValueError for a name that is no text. `may_lack`: None is the lack of one."""
    for name, value in names.items():
        if not isinstance(value, str) and not (may_lack and value is None):
            raise ValueError(f"{name}={value!r} is no name: give text")


def _check(wanted: Mapping[str, Any]) -> None:
    """Raise ValueError for what no request could meet."""
    check_names({name: wanted.get(name) for name in _TEXTS})
    times, seconds = wanted.get("times"), wanted.get("seconds", 0)
    if times is not None and times < 1:
        raise ValueError(f"times={times}: a fault happens once at least; None is every time")
    if seconds < 0:
        raise ValueError(f"seconds={seconds}: a request cannot wait for less than no time")
    if wanted.get("skip", 0) < 0:
        raise ValueError(f"skip={wanted['skip']}: no fewer requests than none go by first")
