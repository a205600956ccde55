"""The clock of the broker: one place that reads the time, so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        ...


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
