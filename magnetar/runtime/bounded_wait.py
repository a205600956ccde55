"""Waits that are bounded in time, all by one timer.

A timer of its own for each wait (`asyncio.timeout`) is a twentieth of the CPU time of a small
transaction, and nearly every wait is over long before its bound. Here one timer looks at all that
wait: whose time is up is found at most `LOOK_S` late, never early. For bounds of seconds.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

#: How often is looked, while anybody waits.
LOOK_S = 0.25


class BoundedWaits:
    """The waits under way."""

    __slots__ = ("timer", "waits")

    def __init__(self) -> None:
        self.waits: set[BoundedWait] = set()
        #: Set while there are waits.
        self.timer: asyncio.TimerHandle | None = None

    def bounded(self, seconds: float) -> BoundedWait:
        """Return a context, as `asyncio.timeout`: what takes longer in it ends as TimeoutError."""
        return BoundedWait(self, seconds)

    def look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the waits after a while, and again while there are any."""
        self.timer = loop.call_later(LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for wait in [wait for wait in self.waits if wait.ends_at_s <= now_s]:
            self.waits.discard(wait)
            wait.give_up()
        self.timer = None
        if self.waits:
            self.look_later(loop)


class BoundedWait:
    """One wait of the task that enters it."""

    __slots__ = ("_bounded_waits", "_cancelling", "_is_given_up", "_seconds", "_task", "ends_at_s")

    def __init__(self, bounded_waits: BoundedWaits, seconds: float) -> None:
        self._bounded_waits = bounded_waits
        self._seconds = seconds
        self._is_given_up = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ends_at_s = loop.time() + self._seconds
        task = asyncio.current_task(loop)
        assert task is not None, "outside of a task nothing waits"
        self._task = task
        self._cancelling = task.cancelling()
        self._bounded_waits.waits.add(self)
        if self._bounded_waits.timer is None:
            self._bounded_waits.look_later(loop)

    def give_up(self) -> None:
        """End the wait as one that took too long."""
        self._is_given_up = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_given_up:
            self._bounded_waits.waits.discard(self)
        # As asyncio.timeout: a cancellation from elsewhere, which came besides, stays one.
        elif self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
