"""Timers of the event loop that many waits share: one for all that end in the same 10 ms.

A thousand idle consumers end two thousand waits a second. A timer for each wakes the process for
each. A wait ends up to `TICK_S` late, never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil

#: What ends within so much time ends together.
TICK_S = 0.01


class SharedTimers:
    """Callbacks by the tick in which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_tick: dict[int, dict[Callable[[], None], None]] = {}

    def add(self, due_s: float, callback: Callable[[], None]) -> None:
        """Call back once `due_s`, in the event loop's time, has come."""
        tick = ceil(due_s / TICK_S)
        callbacks = self._by_tick.get(tick)
        if callbacks is None:
            callbacks = self._by_tick[tick] = {}
            self._loop.call_at(tick * TICK_S, self._ring, tick)
        callbacks[callback] = None

    def discard(self, due_s: float, callback: Callable[[], None]) -> None:
        """Do not call back, unless that has happened."""
        callbacks = self._by_tick.get(ceil(due_s / TICK_S))
        if callbacks is not None:
            callbacks.pop(callback, None)

    def _ring(self, tick: int) -> None:
        # A copy, in effect: a callback may discard another one of its tick.
        callbacks = self._by_tick.pop(tick)
        while callbacks:
            callbacks.popitem()[0]()
