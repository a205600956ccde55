"""A TCP proxy that does to connections what a network can: it cuts, delays, and lets them hang.

It knows nothing of what it carries. Tests and long runs put it between nodes and their database,
and between a primary and its standby.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import TypeVar

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_T = TypeVar("_T")


class Way(Enum):
    """What becomes of bytes."""

    OPEN = auto()
    #: Connections end, and no new one is made.
    CUT = auto()
    #: Connections stay, and nothing arrives in either direction until the way is open again: then
    #: what was sent meanwhile arrives late.
    HANGING = auto()
    #: Requests arrive, and their answers are lost with their connections.
    ANSWERS_LOST = auto()


class TcpProxy:
    """One listening address in front of another. Its methods may be called from any thread."""

    def __init__(self, target_port: int) -> None:
        """Carry connections to a port of this machine, from a free one: `port`."""
        self._target_port = target_port
        self._way = Way.OPEN
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = self._call(asyncio.Event)
        self._call(self._open.set)
        start = asyncio.start_server(self._carry, _HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def heal(self) -> None:
        """Carry everything again, at once."""
        self._call(lambda: self._turn(Way.OPEN, 0.0))

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._call(lambda: self._turn(Way.CUT))

    def hang(self) -> None:
        """Let nothing arrive any more, without ending a connection."""
        self._call(lambda: self._turn(Way.HANGING))

    def lose_answers(self) -> None:
        """Let requests arrive, and drop what comes back."""
        self._call(lambda: self._turn(Way.ANSWERS_LOST))

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later, in both directions."""
        self._call(lambda: self._turn(Way.OPEN, seconds))

    def point_at(self, target_port: int) -> None:
        """End all connections; later ones go to that port."""

        def point() -> None:
            self._target_port = target_port
            self._end_connections()

        self._call(point)

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            # A connection that was accepted before the server closes and begins after it would be
            # left open: asyncio does not close it.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            self._turn(Way.CUT)
            async with asyncio.timeout(5):
                while others := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(others)
            self._server.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, run on the proxy's event loop."""

        async def run() -> _T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _turn(self, way: Way, delay_s: float | None = None) -> None:
        # Answers that were dropped leave a hole: no connection survives that.
        if way is Way.CUT or (self._way is Way.ANSWERS_LOST and way is not self._way):
            self._end_connections()
        self._way = way
        self._delay_s = self._delay_s if delay_s is None else delay_s
        if way is Way.HANGING:
            self._open.clear()
        else:
            self._open.set()

    def _end_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if self._way is Way.CUT:
                return
            await self._open.wait()
            there, back = await asyncio.open_connection(_HOST, self._target_port)
            writers.append(back)
            self._writers.update(writers)
            pumps = {
                asyncio.create_task(self._pump(reader, back)),
                asyncio.create_task(self._pump(there, writer, is_answer=True)),
            }
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        except OSError:
            return
        finally:
            self._writers.difference_update(writers)
            for each in writers:
                each.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._open.wait()
                if is_answer and self._way is Way.ANSWERS_LOST:
                    continue
                writer.write(data)
                await writer.drain()
