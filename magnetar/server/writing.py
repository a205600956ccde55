"""Answers onto the transport of a connection, in few and large writes."""

from __future__ import annotations

import asyncio

from wire.message import Buffer

#: Shorter answers are joined: a copy costs less than a system call's second buffer.
JOINED_BYTES_MAX = 16 * 1024


def write(transport: asyncio.Transport, buffers: list[Buffer]) -> int:
    """Write buffers, of which there are at least two, in order; return their bytes.

    The caller uses the list no more.
    """
    size_bytes = sum(map(len, buffers))
    if size_bytes <= JOINED_BYTES_MAX:
        transport.write(b"".join(buffers))
        return size_bytes
    # The last one by itself: `writelines` of asyncio in Python 3.12.0 to 3.13.1 does not say that
    # the client does not read (CVE-2024-12254).
    last = buffers.pop()
    transport.writelines(buffers)
    transport.write(last)
    return size_bytes
