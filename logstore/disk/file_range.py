"""A part of a file that is in memory, and can be sent from there without a copy: sendfile(2).

Records that are given out would be copied twice, into the process and into the socket. For records
of 10 KB that is half of what a fetch costs (docs/decisions/0088-sendfile.md).
"""

from __future__ import annotations

import os

#: For less than that the calls cost more than a copy.
RANGE_BYTES_MIN = 128 * 1024
#: How many a data directory has at most: each holds a descriptor, which connections need too.
RANGES_MAX = 256


class FileRange:
    """The bytes [position, position + size) of a file. Holds a descriptor of its own until it is
    freed, so the file may be closed and deleted meanwhile. Any thread may free it."""

    __slots__ = ("_descriptor", "_lent", "_position", "_size")

    def __init__(self, descriptor: int, position: int, size: int, lent: list[None]) -> None:
        """`descriptor` is copied; `lent` has an entry while this one lives. Raises OSError."""
        self._descriptor = -1
        self._lent = lent
        self._position = position
        self._size = size
        lent.append(None)
        self._descriptor = os.dup(descriptor)

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self.read()

    def send(self, to: int, start: int = 0) -> int:
        """Hand bytes from `start` on to a socket's descriptor; return how many it took.

        0: the file has been cut. Raises BlockingIOError where the socket takes none now, OSError.
        """
        return os.sendfile(to, self._descriptor, self._position + start, self._size - start)

    def read(self, start: int = 0) -> bytes:
        """Return the bytes from `start` on; fewer where the file has been cut. Raises OSError."""
        parts: list[bytes] = []
        while start < self._size:
            data = os.pread(self._descriptor, self._size - start, self._position + start)
            if not data:
                break
            parts.append(data)
            start += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        self._lent.pop()
        if self._descriptor >= 0:
            os.close(self._descriptor)
