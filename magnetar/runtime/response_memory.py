"""How much memory answers may hold, over all connections: records read and not yet taken away.

A Fetch may ask for 50 MB, and its client may never read them; a thousand such clients would be the
end of the broker. So what fetches have read, while they wait for more and until the client has
taken it, is one account. Over its limit a fetch still answers, with what a small request would have
brought: everyone goes on, more slowly, and the total stays below the limit and `ROOM_BYTES_MIN`, or
one batch, for each connection.
"""

from __future__ import annotations

#: What a fetch may bring whatever the others hold.
ROOM_BYTES_MIN = 64 * 1024
_UNLIMITED_BYTES = 2**31 - 1


class ResponseMemory:
    """The account. A negative limit: none."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How much more may be read; zero or negative where the limit is reached."""
        return _UNLIMITED_BYTES if self.limit_bytes < 0 else self.limit_bytes - self.held_bytes


class HeldResponse:
    """The part of the account that one answer has. Ends with `resize(0)`."""

    __slots__ = ("_memory", "size_bytes")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self.size_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Account for the answer as it is now."""
        self._memory.held_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes

    def room_bytes(self, others_bytes: int) -> int:
        """Return how much may be read besides `others_bytes` of this same answer.

        The first of an answer may have `ROOM_BYTES_MIN` in any case.
        """
        room = self._memory.room_bytes + self.size_bytes - others_bytes
        return max(room, 0 if others_bytes else ROOM_BYTES_MIN)
