"""Ends connections to PostgreSQL that had no answer, and what the server does for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

#: How long the server is asked to stop.
_CLOSE_S = 2.0


class PostgresEndings:
    """The ends of one node's connections.

    A process of the server that waits, for a standby or for a lock, does not notice that its client
    has gone. It would hold its locks and its connection slot, of which the server has few.
    """

    def __init__(self) -> None:
        self._ending: set[asyncio.Task[None]] = set()

    def end(self, connection: Any) -> None:
        """End a connection, on which nothing is awaited any more, beside everything else.

        The server is asked to cancel what it still does. That may have its effect all the same.
        """

        async def close() -> None:
            with suppress(Exception):  # Whatever is wrong with it, it is given up.
                await connection.close(timeout=_CLOSE_S)

        ending = asyncio.get_running_loop().create_task(close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Return when all have ended."""
        await asyncio.sleep(0)  # What was cancelled just before ends its connection now.
        if self._ending:
            await asyncio.wait([*self._ending])
