"""Clients that stop in the midst of a request are cut off while others wait for their memory."""

from __future__ import annotations

import asyncio
import struct

import pytest

from magnetar.broker import Broker
from magnetar.server import listening, unread
from magnetar.server.memory import PROGRESS_BYTES_MIN
from tests.magnetar.conftest import StartBroker
from tests.magnetar.served_broker import encoded, framed
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic

STALLED_S = 1.0
LIMIT_BYTES = 2_000_000
ANNOUNCED = struct.pack(">i", 100_000_000)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def broker(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker that looks often for those that have stopped."""
    monkeypatch.setattr(listening, "_SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(unread, "SHORT_OF_MEMORY_S", STALLED_S)
    settings = {"queued.max.request.bytes": str(LIMIT_BYTES), "auto.create.topics.enable": "false"}
    return await start_broker(settings)


async def begin(broker: Broker, size_bytes: int) -> Streams:
    """Send the first bytes of a large request."""
    streams = await asyncio.open_connection("127.0.0.1", broker.listeners[0].port)
    streams[1].write(ANNOUNCED + bytes(size_bytes))
    return streams


async def test_a_large_request_is_served_once_stalled_ones_are_cut_off(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited until the clients of the others had gone, each in its turn."""
    stalled = [await begin(broker, LIMIT_BYTES // 8) for _ in range(20)]
    async with asyncio.timeout(30):
        while broker.server.memory.partial_bytes <= LIMIT_BYTES:
            await asyncio.sleep(0.01)
        names = [MetadataRequestTopic(name="x" * 20_000)] * 5
        large = framed(encoded(MetadataRequest(topics=names), 9))
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[0].port)
        writer.write(large)
        (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size_bytes)
    for _, connected in (*stalled, (reader, writer)):
        connected.close()
    assert "KB of a request in 1 s" in capsys.readouterr().err


async def test_a_client_that_goes_on_sending_is_not_cut_off(broker: Broker) -> None:
    memory, server = broker.server.memory, broker.server
    _, silent = await begin(broker, 3 * LIMIT_BYTES // 4)
    async with asyncio.timeout(30):
        while memory.partial_bytes < LIMIT_BYTES // 2:
            await asyncio.sleep(0.01)
        _, sending = await begin(broker, LIMIT_BYTES)
        while len(server.connections) == 2:
            sending.write(bytes(PROGRESS_BYTES_MIN))
            await asyncio.sleep(STALLED_S / 25)
    for _ in range(25):
        sending.write(bytes(PROGRESS_BYTES_MIN))
        await asyncio.sleep(STALLED_S / 25)
    assert len(server.connections) == 1
    assert not sending.is_closing()
    for connected in (silent, sending):
        connected.close()


async def test_a_client_that_a_quota_mutes_in_the_midst_of_a_request_is_not_cut_off(
    broker: Broker,
) -> None:
    """It was: the broker did not read it, and missed what it did not read."""
    memory, server = broker.server.memory, broker.server
    _, muted = await begin(broker, 3 * LIMIT_BYTES // 2)
    async with asyncio.timeout(30):
        while memory.partial_bytes <= LIMIT_BYTES:
            await asyncio.sleep(0.01)
    server.connections[0].mute(60_000)
    await asyncio.sleep(STALLED_S + 1)
    assert server.connection_count == 1
    server.connections[0].unmute()
    async with asyncio.timeout(30):
        while server.connection_count:  # Now it is read, and sends nothing.
            await asyncio.sleep(0.01)
    muted.close()
