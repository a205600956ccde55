"""The answers of one connection that its client has not taken yet, and how fast it takes them.

They hold memory of the broker's in the account of answers, until the operating system takes them.
The operating system tells what its peer has acknowledged. Without that a slow client would look as
if it had stopped: the operating system takes a megabyte or more from the broker at a time, and then
nothing until a third of that has left.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from contextlib import suppress

from magnetar.runtime.response_memory import HeldResponse, ResponseMemory
from magnetar.server.idling import Idling

#: What a client takes of its answers within the time that it is given, or it is too slow.
TAKEN_BYTES_MIN = 64 * 1024
#: That time while answers fill their memory: 6.5 KB/s, a tenth of a slow line.
SHORT_OF_MEMORY_S = 10.0
#: The slowest clients are cut off until this part of the memory is free: a quarter.
ROOM_PART = 4


class UnreadAnswers:
    """What a connection has in the account. `resize(0)` ends it."""

    __slots__ = ("_held", "_memory", "_taking")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._held = HeldResponse(memory)
        self._taking: Idling | None = None

    def resize(self, size_bytes: int) -> None:
        """Account for the bytes that wait for the client at present."""
        by_bytes = size_bytes - self._held.size_bytes
        self._held.resize(size_bytes)
        self._memory.resize_unread(by_bytes)
        if not size_bytes:
            self._taking = None

    def slow_seconds(self, now_s: float, transport: asyncio.Transport, sent_bytes: int) -> float:
        """Return for how long the client has not taken TAKEN_BYTES_MIN; to be asked regularly while
        answers wait. `sent_bytes`: all that was ever written to the transport."""
        taken_bytes = sent_bytes - transport.get_write_buffer_size() - _in_system_bytes(transport)
        if self._taking is None:
            self._taking = Idling(now_s, taken_bytes)
        return self._taking.seconds(now_s, taken_bytes, is_busy=False, bytes_min=TAKEN_BYTES_MIN)


def _in_system_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the operating system has, and its peer has not acknowledged."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    # Not every operating system tells it of a socket.
    with suppress(OSError):
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(answer, sys.byteorder)
    return 0
