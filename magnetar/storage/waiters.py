"""Coroutines that wait for a condition, and look at it again whenever it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Waiters:
    """Waits that are woken together, in the order in which they began."""

    def __init__(self) -> None:
        self._woken: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._woken)

    def wake(self) -> None:
        """Let all of them look again."""
        for woken in self._woken:
            if not woken.done():
                woken.set_result(None)

    async def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether `is_so` holds: once it does, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    woken = asyncio.get_running_loop().create_future()
                    self._woken[woken] = None
                    try:
                        await woken
                    finally:
                        del self._woken[woken]
        return is_so()
