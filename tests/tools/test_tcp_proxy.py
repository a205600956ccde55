"""The proxy of the failure tests does what its names say."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest

from tools.tcp_proxy import TcpProxy


class Echo:
    """A server that answers what it is sent, after its own name."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self.received = b""
        self.has_received = asyncio.Event()
        self.port = 0

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            self.received += data
            self.has_received.set()
            writer.write(self._name + data)
        writer.close()


class World:
    """Two servers, of which the proxy leads to the first."""

    def __init__(self) -> None:
        self.first, self.second = Echo(b"1"), Echo(b"2")
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        for echo in (self.first, self.second):
            await self._stack.enter_async_context(await echo.serve())
        self.proxy = await asyncio.to_thread(TcpProxy, self.first.port)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.proxy.port)

    async def asked(self, data: bytes) -> bytes:
        """Return what a new connection answers; nothing where it ends."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            return await reader.read(100)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def stop(self) -> None:
        await asyncio.to_thread(self.proxy.close)
        await self._stack.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    started = World()
    await started.start()
    async with asyncio.timeout(30):
        yield started
    await started.stop()


async def test_it_carries_both_ways_and_turns_to_another(world: World) -> None:
    assert await world.asked(b"a") == b"1a"
    reader, writer = await world.connect()
    writer.write(b"b")
    assert await reader.read(100) == b"1b"
    world.proxy.point_at(world.second.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert await world.asked(b"c") == b"2c"


async def test_what_is_cut_answers_nothing_until_it_is_healed(world: World) -> None:
    world.proxy.cut()
    assert await world.asked(b"a") == b""
    assert world.first.received == b""
    world.proxy.heal()
    assert await world.asked(b"b") == b"1b"


async def test_what_hangs_arrives_late(world: World) -> None:
    reader, writer = await world.connect()
    writer.write(b"a")
    assert await reader.read(100) == b"1a"
    world.proxy.hang()
    writer.write(b"b")
    answer = asyncio.ensure_future(reader.read(100))
    # A round trip elsewhere: time enough for what is not held back.
    other = await asyncio.open_connection("127.0.0.1", world.second.port)
    other[1].write(b"x")
    assert await other[0].read(100) == b"2x"
    other[1].close()
    assert world.first.received == b"a" and not answer.done()
    world.proxy.heal()
    assert await answer == b"1b"
    writer.close()


async def test_lost_answers_have_had_their_effect(world: World) -> None:
    world.proxy.lose_answers()
    asked = asyncio.ensure_future(world.asked(b"a"))
    await world.first.has_received.wait()
    world.proxy.heal()
    assert await asked == b""
    assert world.first.received == b"a"
    assert await world.asked(b"b") == b"1b"


async def test_a_delay_is_waited_for(world: World) -> None:
    loop = asyncio.get_running_loop()
    world.proxy.delay(0.02)
    began_s = loop.time()
    assert await world.asked(b"a") == b"1a"
    assert loop.time() >= began_s + 0.04


async def test_a_connection_that_comes_as_the_proxy_ends_is_ended_too() -> None:
    proxy = await asyncio.to_thread(TcpProxy, 1)
    # So it is accepted in the step in which the proxy begins to end.
    proxy._loop.call_soon_threadsafe(time.sleep, 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await asyncio.to_thread(proxy.close)
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            assert not await reader.read(1)
    writer.close()
    del proxy
    gc.collect()  # Which warns of a connection that was left open.
