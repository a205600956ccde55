"""Connections that were accepted before their turn: nothing of them is served until then.

An event loop begins to read in the step after `connection_made`, whatever that says. So another
protocol takes what has come by then, FIRST_BYTES_MAX at most, and then the connection is not read:
as many wait as may, and what they have sent is in no account of memory.
"""

from __future__ import annotations

import asyncio

from magnetar.server.connection import ClientConnection

#: A client sends ApiVersions first, which fits.
FIRST_BYTES_MAX = 512


class Waiting(asyncio.BufferedProtocol):
    """Stands in for a connection's protocol until its time has come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: ClientConnection,
        transport: asyncio.Transport,
        delay_ms: int,
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._buffer = memoryview(bytearray(FIRST_BYTES_MAX))
        self._count = 0
        transport.set_protocol(self)
        self._timer = loop.call_later(delay_ms / 1000, self._serve)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._count :]

    def buffer_updated(self, nbytes: int) -> None:
        self._count += nbytes
        self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._connection.connection_lost(exc)

    def _serve(self) -> None:
        """Hand over to the connection, with what has come."""
        transport, connection = self._transport, self._connection
        if transport.is_closing():
            return
        transport.pause_reading()
        transport.set_protocol(connection)
        transport.resume_reading()
        received = self._buffer[: self._count]
        while received:
            buffer = memoryview(connection.get_buffer(-1))
            size = min(len(buffer), len(received))
            buffer[:size] = received[:size]
            connection.buffer_updated(size)
            received = received[size:]
