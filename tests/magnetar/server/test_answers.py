"""Unread answers to fetches hold a bounded amount of memory, and everyone else goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from logstore.disk.file_range import FileRange
from magnetar.broker import Broker
from magnetar.runtime.response_memory import (
    PARTITION_BYTES,
    ROOM_BYTES_MIN,
    HeldResponse,
    ResponseMemory,
)
from magnetar.server import connection
from magnetar.server.listening import WRITE_BUFFER_BYTES
from magnetar.server.writing import Answer, write
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import iterate_batches

Connect = Callable[[Broker], Awaitable[RawClient]]
LIMIT_BYTES = 4 << 20
INIT, SEND = FileRange.__init__, FileRange.send
BATCH_BYTES = 100_000
BATCHES = 80
VERSION = 11


def test_what_is_held_is_the_sum_of_all_answers() -> None:
    memory = ResponseMemory(1_000_000)
    first, second = HeldResponse(memory), HeldResponse(memory)
    first.resize(700_000)
    second.resize(200_000)
    assert (memory.held_bytes, memory.room_bytes) == (900_000, 100_000)
    assert second.room_bytes(0) == 300_000  # what it has now it may have again
    assert second.room_bytes(200_000) == 100_000
    first.resize(900_000)
    assert second.room_bytes(200_000) == 0
    assert HeldResponse(memory).room_bytes(0) == ROOM_BYTES_MIN
    first.end()
    second.end()
    assert memory.held_bytes == 0


def test_a_read_that_brings_nothing_keeps_what_its_partitions_hold() -> None:
    memory = ResponseMemory(1_000_000)
    held = HeldResponse(memory, 3)
    for size_bytes in (0, 500, 0):
        held.resize(size_bytes)
        assert memory.held_bytes == 3 * PARTITION_BYTES + size_bytes
    held.end()
    held.end()
    assert memory.held_bytes == 0


def test_without_a_limit_there_is_always_room() -> None:
    memory = ResponseMemory(-1)
    HeldResponse(memory).resize(1 << 40)
    assert HeldResponse(memory).room_bytes(0) == 2**31 - 1


async def filled(start_broker: StartBroker, durability: str = "memory") -> Broker:
    """A broker with 8 MB in one partition, and room for 4 MB of answers."""
    # The operating system takes little off the broker's hands.
    settings = {
        "queued.max.request.bytes": str(LIMIT_BYTES),
        "socket.send.buffer.bytes": "100000",
        "durability": durability,
    }
    broker = await start_broker(settings)
    log = broker.topics.create("a", 1).local[0]
    now_ms = broker.clock.now_ms()
    for _ in range(BATCHES):
        appended = log.append(log.check(batch_of(b"x" * BATCH_BYTES, timestamp=now_ms), now_ms))
    await log.durable(appended.end_offset)
    return broker


def request(offset: int, max_bytes: int, min_bytes: int = 1, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        max_wait_ms=max_wait_ms,
        topics=[FetchTopic(topic="a", partitions=[partition])],
    )


async def batches(client: RawClient, asked: FetchRequest) -> int:
    """Return how many batches a fetch brought."""
    answer = await client.ask(asked, VERSION, FetchResponse)
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    records = cast(bytes, partition.records or b"")
    return len(list(iterate_batches(records)))


def read_nothing(client: RawClient) -> None:
    transport = cast(asyncio.Transport, client.writer.transport)
    transport.pause_reading()
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)


async def test_clients_that_do_not_read_hold_no_more_than_the_limit(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await filled(start_broker)
    memory = broker.response_memory
    silent = [await connect(broker) for _ in range(12)]
    for client in silent:
        read_nothing(client)
        client.send(request(0, 50 << 20), VERSION)
    most = 0
    async with asyncio.timeout(30):
        while most <= LIMIT_BYTES // 2:
            await asyncio.sleep(0.005)
            most = memory.held_bytes
    for _ in range(50):
        await asyncio.sleep(0.005)
        most = max(most, memory.held_bytes)
    assert most <= LIMIT_BYTES + len(silent) * WRITE_BUFFER_BYTES
    # Others are served meanwhile, in smaller portions, to the end.
    reader = await connect(broker)
    offset = 0
    while offset < BATCHES:
        brought = await batches(reader, request(offset, 50 << 20))
        assert brought >= 1
        offset += brought
    for client in silent:
        client.close()
    async with asyncio.timeout(30):
        while memory.held_bytes:
            await asyncio.sleep(0.005)
    assert await batches(reader, request(0, 50 << 20)) == LIMIT_BYTES // BATCH_BYTES


async def test_what_is_read_gives_its_memory_back(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await filled(start_broker)
    client = await connect(broker)
    for _ in range(5):
        assert await batches(client, request(0, 2_000_000)) == 2_000_000 // BATCH_BYTES - 1
        assert broker.response_memory.held_bytes == 0


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_fetch_that_waits_for_more_holds_what_it_has_read(
    start_broker: StartBroker, connect: Connect, leaves: bool
) -> None:
    broker = await filled(start_broker)
    memory = broker.response_memory
    client = await connect(broker)
    wait_ms = 60_000 if leaves else 200
    client.send(request(BATCHES - 10, 3 << 20, 3 << 20, wait_ms), VERSION)
    async with asyncio.timeout(30):
        while not memory.held_bytes:
            await asyncio.sleep(0.001)
        assert 10 * BATCH_BYTES <= memory.held_bytes < 11 * BATCH_BYTES
        if leaves:
            client.close()
        else:
            await client.receive()
        while memory.held_bytes:
            await asyncio.sleep(0.001)


async def test_large_records_leave_from_their_file(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await filled(start_broker, "page-cache")
    sent: list[int] = []

    def send(part: FileRange, to: int, start: int = 0) -> int:
        sent.append(SEND(part, to, start))
        return sent[-1]

    monkeypatch.setattr(FileRange, "send", send)
    assert await batches(await connect(broker), request(0, 10 * BATCH_BYTES)) == 9
    assert sum(sent) > 0
    assert broker.response_memory.held_bytes == 0


async def test_who_asked_for_records_that_are_cut_off_is_cut_off_alone(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = await filled(start_broker, "page-cache")
    other = await connect(broker)
    with monkeypatch.context() as patch:
        patch.setattr(FileRange, "send", lambda *_: 0)
        client = await connect(broker)
        client.send(request(0, 10 * BATCH_BYTES), VERSION)
        with pytest.raises(asyncio.IncompleteReadError):
            await asyncio.wait_for(client.receive(), 10)
    assert "cannot be sent: a file has become shorter" in capsys.readouterr().err
    assert await batches(other, request(0, 10 * BATCH_BYTES)) == 9
    assert broker.response_memory.held_bytes == 0


async def test_answers_from_files_to_one_client_are_not_gathered(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await filled(start_broker, "page-cache")
    counts: list[int] = []

    def counted(transport: asyncio.Transport, answer: Answer) -> int:
        counts.append(sum(isinstance(part, FileRange) for part in answer))
        return write(transport, answer)

    monkeypatch.setattr(connection, "write", counted)
    client = await connect(broker)
    for offset in range(8):
        client.send(request(offset, 3 * BATCH_BYTES), VERSION)
    for _ in range(8):
        await client.receive()
    assert counts == [1] * 8


async def test_a_fetch_that_waits_for_more_holds_no_part_of_a_file(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await filled(start_broker, "page-cache")
    lent: list[list[None]] = []

    def noted(part: FileRange, *arguments: Any) -> None:
        INIT(part, *arguments)
        lent.append(arguments[-1])

    monkeypatch.setattr(FileRange, "__init__", noted)
    client = await connect(broker)
    client.send(request(BATCHES - 10, 3 << 20, 3 << 20, 60_000), VERSION)
    async with asyncio.timeout(30):
        while not broker.response_memory.held_bytes:
            await asyncio.sleep(0.001)
    assert lent == [[]]
    client.close()
