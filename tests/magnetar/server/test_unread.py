"""Clients that take their answers slowly are served; those that take next to nothing are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from magnetar.broker import Broker
from magnetar.runtime.response_memory import ResponseMemory
from magnetar.server import listening, unread
from magnetar.server.unread import UnreadAnswers
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import StartBroker
from tests.magnetar.served_broker import encoded, framed
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

ANSWER_BYTES = 1_500_000
IDLE_S = 1.5
TAKEN_BYTES_MIN = 10_000

Ask = Callable[[Broker], Awaitable[socket.socket]]
Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
def start(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a broker with an answer of ANSWER_BYTES, which looks often."""
    monkeypatch.setattr(listening, "_SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(unread, "TAKEN_BYTES_MIN", TAKEN_BYTES_MIN)

    async def started(**settings: str) -> Broker:
        # The operating system takes little off the broker's hands.
        given = {"socket.send.buffer.bytes": "50000", "message.max.bytes": "33554432"}
        named = {name.replace("_", "."): value for name, value in settings.items()}
        broker = await start_broker({**given, **named})
        log = broker.topics.create("t", 1).local[0]
        log.append(log.check(batch_of(b"x" * ANSWER_BYTES), 0))
        await log.durable(log.log_end_offset)
        return broker

    return started


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Connect to a broker and ask for its large answer, of which nothing is received yet."""
    opened: list[socket.socket] = []

    async def asked(broker: Broker) -> socket.socket:
        client = socket.socket()
        opened.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", broker.listeners[0].port))
        partition = FetchPartition(partition=0, partition_max_bytes=1 << 25)
        topic = FetchTopic(topic="t", partitions=[partition])
        request = FetchRequest(session_epoch=-1, max_bytes=1 << 25, topics=[topic])
        await loop.sock_sendall(client, framed(encoded(request, 12)))
        async with asyncio.timeout(30):
            while not broker.response_memory.held_bytes:
                await asyncio.sleep(0.001)
        return client

    yield asked
    for client in opened:
        client.close()


async def received(client: socket.socket, piece_bytes: int, every_s: float = 0) -> int:
    """Return how many bytes came, in pieces of that size, until the answer or the connection
    ended."""
    loop, count = asyncio.get_running_loop(), 0
    with suppress(ConnectionResetError):
        while count < ANSWER_BYTES:
            data = await loop.sock_recv(client, piece_bytes)
            if not data:
                break
            count += len(data)
            await asyncio.sleep(every_s)
    return count


async def until_cut_off(broker: Broker, client: socket.socket) -> None:
    """Receive byte by byte until the broker has nothing more for the client."""
    receiving = asyncio.create_task(received(client, 1, 0.001))
    async with asyncio.timeout(30):
        while len(broker.server.connections) > 0:
            await asyncio.sleep(0.01)
    receiving.cancel()


async def test_an_answer_that_takes_long_is_no_idle_connection(start: Start, ask: Ask) -> None:
    """One of 100 MB at 64 KB/s was cut off after connections.max.idle.ms, ten minutes."""
    broker = await start(connections_max_idle_ms=f"{IDLE_S * 1000:.0f}")
    client = await ask(broker)
    began_s = asyncio.get_running_loop().time()
    assert await received(client, 10_000, 0.02) >= ANSWER_BYTES
    assert asyncio.get_running_loop().time() - began_s > 1.5 * IDLE_S


async def test_an_answer_that_is_taken_byte_by_byte_is_cut_off(
    start: Start, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start(connections_max_idle_ms=f"{IDLE_S * 1000:.0f}")
    await until_cut_off(broker, await ask(broker))
    assert not broker.response_memory.held_bytes
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "it took less" in line]
    assert "connections.max.idle.ms=1500" in line


async def test_a_slow_client_is_cut_off_sooner_while_answers_fill_their_memory(
    start: Start,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(unread, "SHORT_OF_MEMORY_S", IDLE_S)
    broker = await start(queued_max_request_bytes="1000000")
    quick, slow = await ask(broker), await ask(broker)
    cutting_off = asyncio.create_task(until_cut_off(broker, slow))
    assert await received(quick, 10_000, 0.01) >= ANSWER_BYTES
    quick.close()
    await cutting_off
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "it took less" in line]
    assert "queued.max.request.bytes" in line


async def test_only_the_slowest_clients_are_cut_off_for_their_memory(
    start: Start, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that rested were, at the moment when one answer more filled the memory."""
    monkeypatch.setattr(unread, "SHORT_OF_MEMORY_S", IDLE_S)
    monkeypatch.setattr(unread, "ROOM_PART", 10)
    # Two answers leave a tenth and more, and three are too many.
    broker = await start(queued_max_request_bytes=f"{ANSWER_BYTES * 12 // 5}")
    silent = await ask(broker)
    await asyncio.sleep(IDLE_S / 3)
    resting = await ask(broker)
    await asyncio.sleep(1.5 * IDLE_S)
    assert len(broker.server.connections) == 2
    late = await ask(broker)
    # For many sweeps, and not for as long as the late one may rest.
    await asyncio.sleep(IDLE_S / 3)
    assert await received(resting, 100_000) >= ANSWER_BYTES
    assert await received(late, 100_000) >= ANSWER_BYTES
    assert await received(silent, 100_000) < ANSWER_BYTES


class Buffered(asyncio.Transport):
    """A transport that has been given an answer and holds `size_bytes` of it."""

    size_bytes = ANSWER_BYTES

    def get_write_buffer_size(self) -> int:
        return self.size_bytes


def test_a_client_is_slow_for_as_long_as_it_has_taken_little() -> None:
    answers, transport = UnreadAnswers(ResponseMemory(-1)), Buffered()
    answers.resize(ANSWER_BYTES)

    def slow_seconds(now_s: float) -> float:
        return answers.slow_seconds(now_s, transport, ANSWER_BYTES)

    assert [slow_seconds(100), slow_seconds(107)] == [0, 7]
    transport.size_bytes -= unread.TAKEN_BYTES_MIN - 1
    assert slow_seconds(108) == 8
    # However many times it took for that.
    transport.size_bytes -= 1
    assert [slow_seconds(109), slow_seconds(110)] == [0, 1]
    # Another answer, after all of this one was taken.
    answers.resize(0)
    assert [slow_seconds(200), slow_seconds(201)] == [0, 1]
