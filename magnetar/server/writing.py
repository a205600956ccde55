"""Answers onto the transport of a connection, in few and large writes; records that lie in files
without a copy.

What the socket takes of such records at once, some megabytes, goes from the file into the socket.
What it does not take, and all that an encrypted connection sends, is read into memory, and waits in
the transport.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TypeAlias

from logstore.disk.file_range import FileRange
from magnetar.server.pacing import PacedTransport
from wire.message import Buffer

#: The parts of an answer, in their order; empty where none is to be sent.
Answer: TypeAlias = list[Buffer | FileRange]

#: The number of buffers of answers that a connection gathers before it sends them.
GATHER_MAX = 64
#: Shorter answers are joined: a copy costs less than a system call's second buffer.
JOINED_BYTES_MAX = 16 * 1024


class FileCut(OSError):
    """A file has lost bytes that were there a moment ago: another program has cut it."""


def write(transport: asyncio.Transport, answer: Answer) -> int:
    """Write the parts of an answer, of which there are at least two; return their bytes.

    The caller uses the list no more. Raises OSError where a file cannot be read; then the rest of
    the answer does not exist, and the transport has to be aborted.
    """
    size_bytes = sum(map(len, answer))
    buffers = [part for part in answer if not isinstance(part, FileRange)]
    if size_bytes <= JOINED_BYTES_MAX:
        transport.write(b"".join(buffers))
        return size_bytes
    if len(buffers) < len(answer):
        buffers = _rest_after_sending(transport, answer)
    if buffers:
        # The last one by itself: `writelines` of asyncio in Python 3.12.0 to 3.13.1 does not say
        # that the client does not read (CVE-2024-12254).
        last = buffers.pop()
        transport.writelines(buffers)
        transport.write(last)
    return size_bytes


def _rest_after_sending(transport: asyncio.Transport, answer: Answer) -> list[Buffer]:
    """Hand to the socket what it takes now; return the rest, in memory."""
    if isinstance(transport, PacedTransport) or transport.get_write_buffer_size():
        return _in_memory(answer)
    if transport.is_closing():
        return []
    # The event loop lends its socket's descriptor alone, which stays the event loop's to close. No
    # copy: there may be no descriptor left.
    descriptor = transport.get_extra_info("socket").fileno()
    # By its kind it does not wait, whatever `socket.setdefaulttimeout` says.
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    sock = socket.socket(socket.AF_INET, kind, 0, fileno=descriptor)
    try:
        for number, part in enumerate(answer):
            is_last = number == len(answer) - 1
            sent_bytes = _send(sock, part, is_last=is_last)
            if sent_bytes < len(part):
                return _in_memory(answer[number:], sent_bytes)
    except (ConnectionError, TimeoutError):
        transport.abort()
    finally:
        sock.detach()
    return []


def _send(sock: socket.socket, part: Buffer | FileRange, *, is_last: bool) -> int:
    """Return how many bytes of `part` the socket has taken.

    Raises ConnectionError and TimeoutError where the client has gone, and FileCut.
    """
    sent_bytes = 0
    try:
        while sent_bytes < len(part):
            if not isinstance(part, FileRange):
                rest = memoryview(part)[sent_bytes:]
                sent_bytes += sock.send(rest, 0 if is_last else socket.MSG_MORE)
            elif count := part.send(sock.fileno(), sent_bytes):
                sent_bytes += count
            else:
                raise FileCut("a file has become shorter")
    except (ConnectionError, TimeoutError, FileCut):
        raise
    except OSError:
        pass  # It takes no more now, or nothing of this file system. The rest is read.
    return sent_bytes


def _in_memory(answer: Answer, start: int = 0) -> list[Buffer]:
    """Return the parts of an answer from byte `start` of the first one on, in memory."""
    found: list[Buffer] = []
    for part in answer:
        if not isinstance(part, FileRange):
            found.append(memoryview(part)[start:])
        else:
            data = part.read(start)
            if len(data) < len(part) - start:
                raise FileCut("a file has become shorter")
            found.append(data)
        start = 0
    return found
