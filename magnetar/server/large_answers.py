"""Large answers wait for room before they are encoded.

A request of 31 bytes may be answered with megabytes. The answers that clients have not taken yet
have an account (`magnetar.runtime.response_memory`), and only a fetch knows beforehand what it will
put there. Other large answers are encoded one at a time, so that each sees the one before in the
account, and not while answers that clients do not take fill it. A small answer never waits. Clients
that take next to nothing are cut off after ten seconds (`unread`), so there is room again by then.
Fetches that wait for records may fill the account for minutes, and do not count here.

An answer that waits is not encoded, and holds the objects that it consists of. So only few may
wait, and the connection of one more is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.runtime.response_memory import ResponseMemory
from wire.errors import WireError

#: The elements of an answer that does not wait, each KB of a long text counted as one: all that
#: Metadata says of a topic of some three hundred partitions.
SMALL_ELEMENTS_MAX = 1024
#: The most answers that wait for room.
WAITING_MAX = 16


class LargeAnswers:
    """The large answers of all connections."""

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._one = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Enter when there is room. The caller hands its answer on before its next wait.

        Raises WireError where the account is full and as many wait as may.
        """
        memory = self._memory
        if memory.is_unread and self._waiting >= WAITING_MAX:
            raise WireError("a large answer may not wait: others hold queued.max.request.bytes")
        self._waiting += 1
        try:
            async with self._one:
                while memory.is_unread:
                    await memory.taken()
                yield
        finally:
            self._waiting -= 1
