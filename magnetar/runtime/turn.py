"""A share of the event loop's time, for work on many partitions that others must not wait for."""

from __future__ import annotations

import asyncio
from time import perf_counter

#: The longest turn. What the loop does for others in between takes less than that, usually.
TURN_S = 0.001


class Turn:
    """Ask `is_over` after each small piece of work; `await next()` when it is."""

    __slots__ = ("_ends_at_s",)

    def __init__(self) -> None:
        self._ends_at_s = perf_counter() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether others are to have their turn."""
        return perf_counter() >= self._ends_at_s

    async def next(self) -> None:
        """Return when all others had their turn."""
        await asyncio.sleep(0)
        self._ends_at_s = perf_counter() + TURN_S
