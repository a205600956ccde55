"""The clock of the broker: one place that reads the time, so that tests can turn it.

Two times. The wall clock is for what is stored and shown: it may be set, by an operator or by NTP,
and then jumps. What waits for time to pass goes by the steady one, which does not: otherwise all
members of all groups would expire at once, and all transactions, or none ever.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Return the current time, as the wall clock has it."""
        ...

    def steady_ms(self) -> int:
        """Return the time that the wall clock would have, had nobody set it since the start."""
        ...


class SystemClock:
    """The operating system's clock."""

    def __init__(self) -> None:
        self._began_ms = self.now_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Return the current time, as the wall clock has it."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return the time that the wall clock would have, had nobody set it since the start."""
        return self._began_ms + time.monotonic_ns() // 1_000_000
