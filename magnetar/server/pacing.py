"""A transport with TLS that is given no more than its client takes.

The event loop encrypts all that is written to such a transport at once, and hands it to a transport
below, whose buffer it does not count: a client that reads nothing of an answer of 50 MB would hold
100 MB in no account. Only what is written while the transport below is full counts, and pauses the
connection. So answers are written piece by piece, and what the transport has no room for waits
here. Uncounted are a piece below, and the piece that shows that there is no room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from magnetar.runtime.response_memory import ROOM_BYTES_MIN
from wire.message import Buffer

#: The size of a piece. A transport in which so many bytes wait says that its client does not read:
#: both event loops compare with `>=`.
PIECE_BYTES = ROOM_BYTES_MIN


def paced(transport: asyncio.Transport) -> asyncio.Transport:
    """Return what to write to in place of a connection's transport: of one with TLS, another."""
    is_encrypted = transport.get_extra_info("ssl_object") is not None
    return PacedTransport(transport) if is_encrypted else transport


class PacedTransport(asyncio.Transport):
    """What is written waits here while the transport has no room. `go_on` must be called when the
    transport resumes writing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_closing = False

    def go_on(self) -> bool:
        """Write what waits, as far as there is room; return whether there is room for more."""
        transport, waiting = self._transport, self._waiting
        while waiting and transport.get_write_buffer_size() < PIECE_BYTES:
            piece = waiting[0][:PIECE_BYTES]
            rest = waiting.popleft()[PIECE_BYTES:]
            if rest:
                waiting.appendleft(rest)
            # Before the write: the transport may pause the connection in it, which asks for this.
            self._waiting_bytes -= len(piece)
            transport.write(piece)
        if self._is_closing and not waiting and not transport.is_closing():
            transport.close()  # Once: after a second time asyncio's aborts nothing, and fails.
        # The last piece may have filled the transport.
        return not waiting and transport.get_write_buffer_size() < PIECE_BYTES

    def write(self, data: Buffer) -> None:
        transport = self._transport
        has_room = not self._waiting and transport.get_write_buffer_size() < PIECE_BYTES
        if has_room and len(data) <= PIECE_BYTES:
            transport.write(data)
            return
        self._waiting.append(memoryview(data))
        self._waiting_bytes += len(data)
        self.go_on()

    def writelines(self, list_of_data: Any) -> None:
        # Small buffers are joined: each write is a record of TLS at least.
        joined: list[Buffer] = []
        joined_bytes = 0
        for data in list_of_data:
            if joined and joined_bytes + len(data) > PIECE_BYTES:
                self.write(joined[0] if len(joined) == 1 else b"".join(joined))
                joined, joined_bytes = [], 0
            joined.append(data)
            joined_bytes += len(data)
        self.write(b"".join(joined))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._is_closing = True
        self.go_on()

    def abort(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
