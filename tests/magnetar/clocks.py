"""Clocks for a broker in this process: one that runs and can be moved, one turned by hand."""

from __future__ import annotations

from magnetar.clock import SystemClock


class MovedClock(SystemClock):
    """Time may be made to pass (`passed_ms`); the wall clock alone may be set (`set_by_ms`)."""

    passed_ms = 0
    set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.passed_ms + self.set_by_ms

    def steady_ms(self) -> int:
        return super().steady_ms() + self.passed_ms


class HandClock:
    """It stands still until `ms` is changed."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def steady_ms(self) -> int:
        return self.ms


class HeldClock(MovedClock):
    """The steady time passes when a test says so."""

    def steady_ms(self) -> int:
        return 1_000_000 + self.passed_ms
