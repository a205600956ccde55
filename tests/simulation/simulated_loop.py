"""An event loop with a time of its own: it wakes sleeping tasks at once, in the order of time.

So minutes of timeouts pass in milliseconds, and a story is told again by its seed.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

START_MS = 1_700_000_000_000


class _Selector(selectors.SelectSelector):
    """Waits for nothing: time passes instead."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.loop.now_s += max(timeout, 0)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time moves when nothing is left to do. Nothing else can be waited for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now_s


class LoopClock:
    """The loop's time as a broker reads it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000)

    def steady_ms(self) -> int:
        return self.now_ms()
