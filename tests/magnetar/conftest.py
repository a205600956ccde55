"""Fixtures: a broker in this process, and a client that speaks raw frames to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from magnetar import logging
from magnetar.broker import Broker
from magnetar.config.load import Given, load
from magnetar.runtime import turns
from magnetar.storage.whole_changes import CATALOG
from tests.magnetar.clocks import MovedClock
from wire.message import Message
from wire.messages.header import RequestHeader

M = TypeVar("M", bound=Message)

StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Lines of the test before are not counted as this one's."""
    logging.configure()


class RawClient:
    """One connection; requests are sent as asked for, answers come back in bytes or decoded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def send(self, request: Message, version: int, *, client_id: str | None = "raw") -> int:
        """Send a request and return its correlation id."""
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=client_id,
        )
        body = header.encode(request.header_version(version)) + request.encode(version)
        self.send_frame(body)
        return self._correlation_id

    def send_frame(self, body: bytes) -> None:
        """Send a body with its size in front."""
        self.writer.write(struct.pack(">i", len(body)) + body)

    async def receive(self) -> tuple[int, bytes]:
        """Return correlation id and the rest of the next answer."""
        size, correlation_id = struct.unpack(">ii", await self.reader.readexactly(8))
        return correlation_id, await self.reader.readexactly(size - 4)

    async def ask(self, request: Message, version: int, response_class: type[M]) -> M:
        """Send a request and return its answer."""
        sent = self.send(request, version)
        correlation_id, body = await self.receive()
        assert correlation_id == sent
        return response_class.decode(body[response_class.header_version(version) :], version)

    async def is_closed(self) -> bool:
        """Whether the broker ends the connection, without another byte."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()


async def crash(broker: Broker) -> None:
    """End a broker as `kill -9` does, for all that its files can tell: nothing more is written."""
    broker.logs._directory.abandon()
    await broker.server.stop()
    broker.catalog.close()
    broker.is_stopped = True


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the event loop is over once it is asked about again."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each turn that was given up. Every turn is over after one of the things."""
    given_up: list[None] = []
    give_up = turns.Turns.give_up

    async def counted(self: turns.Turns) -> None:
        given_up.append(None)
        await give_up(self)

    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns.Turns, "give_up", counted)
    return given_up


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Start brokers on free ports; settings by Kafka's names. All are stopped at the end.

    What none of them could go on from, which would end the process, is an error of the test.
    """
    started: list[Broker] = []
    failures: list[BaseException] = []

    async def start(settings: dict[str, str] | None = None, **options: Any) -> Broker:
        values = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "data"),
            "durability": "memory",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            **(settings or {}),
        }
        loaded = load([Given(name, value, "test") for name, value in values.items()])
        broker = Broker(loaded.config, **{"on_failure": failures.append, **options})
        await broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        if not broker.is_stopped:
            await broker.stop()
    assert not failures


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """A broker that keeps nothing."""
    return await start_broker()


@pytest.fixture
def clock() -> MovedClock:
    """A clock for `start_broker(clock=...)` that may be moved."""
    return MovedClock()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Broker], Awaitable[RawClient]]]:
    """Open raw connections to a broker; all are closed at the end."""
    opened: list[RawClient] = []

    async def open_one(broker: Broker) -> RawClient:
        listener = broker.listeners[0]
        client = RawClient(*await asyncio.open_connection(listener.host, listener.port))
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
async def client(broker: Broker, connect: Callable[[Broker], Awaitable[RawClient]]) -> RawClient:
    """A raw connection to `broker`."""
    return await connect(broker)


@pytest.fixture
def catalog_is_free(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Changes of the catalog that requests wait for are made while this is set, not at first."""
    is_free = asyncio.Event()

    async def when_free(work: Callable[..., Any], *arguments: Any) -> Any:
        await is_free.wait()
        return work(*arguments)

    monkeypatch.setattr(CATALOG, "run", when_free)
    return is_free
