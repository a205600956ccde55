"""Large answers that clients do not read hold a bounded amount of memory, whatever the API."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from magnetar.server import large_answers
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient, StartBroker
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

Connect = Callable[[Broker], Awaitable[RawClient]]
LIMIT_BYTES = 4 << 20
#: What a request of 31 bytes is answered with.
ANSWER_BYTES = 1_600_000
ALL_OFFSETS = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
VERSION = 9


async def started_with(start_broker: StartBroker, limit_bytes: int) -> Broker:
    # The operating system takes little off the broker's hands.
    settings = {
        "queued.max.request.bytes": str(limit_bytes),
        "socket.send.buffer.bytes": "100000",
    }
    started = await start_broker(settings)
    started.topics.create("a", 400)
    for first in (0, 200):
        said = [
            ("a", partition, CommittedOffset(1, metadata=b"m" * 4000))
            for partition in range(first, first + 200)
        ]
        committing = started.groups.offsets.commit(
            Committer(group_id="g"), said, knows_group_not_found=True
        )
        await durably(committing)
    return started


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await started_with(start_broker, LIMIT_BYTES)


def ask_and_read_nothing(client: RawClient) -> None:
    transport = cast(asyncio.Transport, client.writer.transport)
    transport.pause_reading()
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    client.send(ALL_OFFSETS, VERSION)


async def until_full(broker: Broker) -> None:
    async with asyncio.timeout(30):
        while not broker.response_memory.is_unread:
            await asyncio.sleep(0.005)


async def test_clients_that_do_not_read_hold_the_limit_and_one_answer(
    broker: Broker, connect: Connect
) -> None:
    """60 that asked for 8 MB each held 300 MB in an account of 64."""
    silent = [await connect(broker) for _ in range(12)]
    for client in silent:
        ask_and_read_nothing(client)
    await until_full(broker)
    most = 0
    for _ in range(100):
        await asyncio.sleep(0.005)
        most = max(most, broker.response_memory.held_bytes)
    assert most <= LIMIT_BYTES + ANSWER_BYTES
    # Short answers wait for nothing, and a large one until there is room.
    other = await connect(broker)
    await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    asking = asyncio.create_task(other.ask(ALL_OFFSETS, VERSION, OffsetFetchResponse))
    await asyncio.sleep(0.1)
    assert not asking.done()
    for client in silent:
        client.close()
    answer = await asyncio.wait_for(asking, 30)
    assert len(answer.groups[0].topics[0].partitions) == 400
    async with asyncio.timeout(30):
        while broker.response_memory.held_bytes:
            await asyncio.sleep(0.005)


async def test_a_large_answer_waits_for_nothing_while_no_other_does(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Without any room for answers it would wait for ever."""
    client = await connect(await started_with(start_broker, 0))
    asking = client.ask(ALL_OFFSETS, VERSION, OffsetFetchResponse)
    answer = await asyncio.wait_for(asking, 30)
    assert len(answer.groups[0].topics[0].partitions) == 400


async def test_only_so_many_large_answers_wait(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that waits holds what it is made of."""
    monkeypatch.setattr(large_answers, "WAITING_MAX", 2)
    silent = []
    while not broker.response_memory.is_unread:
        silent.append(await connect(broker))
        ask_and_read_nothing(silent[-1])
        await asyncio.sleep(0.1)
    waiting = [await connect(broker) for _ in range(2)]
    for client in waiting:
        client.send(ALL_OFFSETS, VERSION)
        await asyncio.sleep(0.05)
    beyond = await connect(broker)
    beyond.send(ALL_OFFSETS, VERSION)
    with pytest.raises(asyncio.IncompleteReadError):
        await asyncio.wait_for(beyond.receive(), 10)
    # One that goes makes room for another.
    for client in (*silent, waiting[0]):
        client.close()
    await asyncio.wait_for(waiting[1].receive(), 30)
