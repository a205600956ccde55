"""One alarm of the event loop, set to the earliest of many deadlines: nothing sweeps or polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: The longest sleep: a machine that was suspended looks again within this time.
SLEEP_MS_MAX = 60_000


class Alarm:
    """Calls `ring` on the event loop when the time it was set to has come; early rings may
    happen."""

    __slots__ = ("_due_ms", "_handle", "_ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._due_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_ms: int | None, now_ms: int) -> None:
        """Ring at `due_ms` unless it rings earlier already; None changes nothing."""
        if due_ms is None or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self.cancel()
        self._due_ms = due_ms
        delay_ms = min(max(due_ms - now_ms, 0), SLEEP_MS_MAX)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def cancel(self) -> None:
        """Do not ring until set again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._due_ms = None

    def _wake(self) -> None:
        self._handle = None
        self._due_ms = None
        self._ring()
