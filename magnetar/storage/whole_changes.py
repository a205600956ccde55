"""Changes of topics that take many turns of the event loop: one at a time, each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from logstore.disk.pools import Pool

_T = TypeVar("_T")

#: Changes of the catalog that requests wait for: one at a time.
CATALOG = Pool("catalog", 1)


class WholeChanges:
    """The changes under way, and the turn of one of them."""

    def __init__(self) -> None:
        #: Held by the change whose turn it is.
        self.turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def whole(self, change: Coroutine[None, None, _T]) -> _T:
        """Carry a change to its end, also when the request that waits for it is cancelled."""
        task = asyncio.get_running_loop().create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        # Half a change is worse than one whose client has gone: the catalog may have it already.
        try:
            return await asyncio.shield(task)
        finally:
            # The traceback of an error of the change leads here. With the task, which has the
            # error, this frame would be a cycle.
            del task

    async def alone(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Carry a change to its end in its turn: while no other one is under way."""
        return await self.whole(self._alone(change))

    async def _alone(self, change: Callable[[], Awaitable[_T]]) -> _T:
        async with self.turn:
            return await change()

    async def ended(self) -> None:
        """Return when none is under way."""
        while self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)
