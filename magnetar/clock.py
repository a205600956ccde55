"""The clock of the broker: one place that reads the time, so that tests can set it.

There are two times. The wall clock is for what is stored and shown: an operator or NTP may set it,
and then it jumps. Timeouts go by the steady clock, which does not: otherwise a jump would expire
all members of all groups and all transactions at once, or none for ever.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the time in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Return the wall clock's time."""
        ...

    def steady_ms(self) -> int:
        """Return the time that the wall clock would show, had it not been set since the start."""
        ...


class SystemClock:
    """The operating system's clock."""

    def __init__(self) -> None:
        self._began_ms = self.now_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Return the wall clock's time."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return the time that the wall clock would show, had it not been set since the start."""
        return self._began_ms + time.monotonic_ns() // 1_000_000
