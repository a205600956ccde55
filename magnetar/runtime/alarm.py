"""One alarm of the event loop, set to the earliest of many deadlines: nothing sweeps or polls.

A ring that comes much too late says that the process stood still: it was stopped, or its machine
suspended. What clients have sent meanwhile lies unread then, and it is for them to be late, not for
the broker: they are heard first, and the alarm rings a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: The longest sleep: a machine that was suspended looks again within this time.
SLEEP_MS_MAX = 60_000
#: How late a ring may be before the process must have stood still.
LATE_MS_MAX = 100
#: How long clients are heard then before it rings: a poll of all sockets, a few steps of each.
HEARING_MS = 500


class Alarm:
    """Calls `ring` on the event loop when the time it was set to has come.

    It may ring early (`SLEEP_MS_MAX`), and `HEARING_MS` late after the process stood still.
    """

    __slots__ = ("_due_ms", "_handle", "_ring", "_rings_at_s")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._due_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        #: In the event loop's time.
        self._rings_at_s = 0.0

    def set(self, due_ms: int | None, now_ms: int) -> None:
        """Ring at `due_ms` unless it rings earlier already; None changes nothing."""
        if due_ms is None or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self.cancel()
        self._due_ms = due_ms
        delay_ms = min(max(due_ms - now_ms, 0), SLEEP_MS_MAX)
        loop = asyncio.get_running_loop()
        self._rings_at_s = loop.time() + delay_ms / 1000
        self._handle = loop.call_at(self._rings_at_s, self._wake)

    def cancel(self) -> None:
        """Do not ring until set again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._due_ms = None

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if (loop.time() - self._rings_at_s) * 1000 > LATE_MS_MAX:
            self._handle = loop.call_later(HEARING_MS / 1000, self._wake_at_last)
        else:
            self._wake_at_last()

    def _wake_at_last(self) -> None:
        self._handle = None
        self._due_ms = None
        self._ring()
