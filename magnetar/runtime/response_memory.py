"""The memory that responses hold over all connections: records read and not yet taken away.

A Fetch may ask for 50 MB, and its client may never read them; a thousand such clients would be the
end of the broker. So one account counts the bytes that fetches have read, from the read until the
client has taken them. Over the limit a fetch is still answered, with as little as a small request
would have brought: every client goes on, more slowly, and the total stays below the limit and
`ROOM_BYTES_MIN`, or one batch, for each connection.
"""

from __future__ import annotations

import asyncio

#: What a fetch holds for each of its partitions while it reads and waits: what was asked, what was
#: read, the subscription.
PARTITION_BYTES = 1000
#: A fetch may hold so much whatever the others hold.
ROOM_BYTES_MIN = 64 * 1024
_UNLIMITED_BYTES = 2**31 - 1


class ResponseMemory:
    """The account. A negative limit stands for none."""

    __slots__ = ("_unread_bytes", "_waiter", "held_bytes", "is_unread", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        #: What was sent, and clients have not taken yet.
        self._unread_bytes = 0
        #: Whether answers that clients do not take fill the account: slow clients are cut off.
        self.is_unread = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def room_bytes(self) -> int:
        """The bytes that may still be read; zero or negative where the limit is reached."""
        return _UNLIMITED_BYTES if self.limit_bytes < 0 else self.limit_bytes - self.held_bytes

    def resize_unread(self, by_bytes: int) -> None:
        """Note that more answers wait for their clients, or fewer (negative)."""
        self._unread_bytes += by_bytes
        self.is_unread = self._unread_bytes > self.limit_bytes >= 0
        waiter = self._waiter
        if waiter is not None and not self.is_unread and not waiter.done():
            waiter.set_result(None)

    async def taken(self) -> None:
        """Return when `is_unread` no longer holds. Only one waits at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class HeldResponse:
    """The part of the account that one response holds, until `end`."""

    __slots__ = ("_memory", "_partitions_bytes", "size_bytes")

    def __init__(self, memory: ResponseMemory, partition_count: int = 0) -> None:
        """`partition_count` partitions are held beside the records until the end."""
        self._memory = memory
        self._partitions_bytes = partition_count * PARTITION_BYTES
        memory.held_bytes += self._partitions_bytes
        self.size_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Account for the present size of the response's records."""
        self._memory.held_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes

    def end(self) -> None:
        """Give back all of it: the client's connection has the response."""
        self._memory.held_bytes -= self.size_bytes + self._partitions_bytes
        self.size_bytes = self._partitions_bytes = 0

    def room_bytes(self, others_bytes: int) -> int:
        """Return the bytes that may be read besides `others_bytes` of this same response.

        The first read of a response may have `ROOM_BYTES_MIN` in any case.
        """
        room = self._memory.room_bytes + self.size_bytes - others_bytes
        # Only the first: with a floor for every read, a fetch of a thousand partitions would know
        # no limit.
        return max(room, 0 if others_bytes else ROOM_BYTES_MIN)
