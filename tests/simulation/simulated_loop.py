"""An event loop with a time of its own: it wakes sleeping tasks at once, in the order of time.

So minutes of timeouts pass in milliseconds, and a story is told again by its seed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

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

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Do the work at a later step: there are no threads."""
        done: asyncio.Future[T] = self.create_future()

        def perform() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as failure:
                done.set_exception(failure)

        self.call_soon(perform)
        return done


class LoopClock:
    """The loop's time as a broker reads it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000)

    def steady_ms(self) -> int:
        return self.now_ms()
