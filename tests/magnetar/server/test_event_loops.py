"""Both event loops of a broker: they read, and ask where a client is, in steps of their own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.config.load import Given, load
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.security.handshakes import Outcome
from magnetar.testing.certificates import COMMON_NAME, make, named
from tests.logstore.partitions import batch_of
from tests.magnetar.clocks import HeldClock
from tests.magnetar.conftest import RawClient
from tests.magnetar.server.test_turns import is_empty
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.header import RequestHeader
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

AUTHORITY = make(named((COMMON_NAME, "authority")))
#: What is sent has arrived, and the connection is reset with the close.
RESET = struct.pack("ii", 1, 0)
#: More than the operating system takes for a client that does not read.
UNREAD_BYTES = 16 << 20


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Runs on each of the event loops of a broker: they ask a socket at other times."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@asynccontextmanager
async def serving(settings: dict[str, str], **options: Any) -> AsyncIterator[Broker]:
    values = {"durability": "memory", "transaction.state.log.num.partitions": "2", **settings}
    loaded = load([Given(name, value, "test") for name, value in values.items()])
    failures: list[BaseException] = []
    broker = Broker(loaded.config, on_failure=failures.append, **options)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
    assert not failures


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def produce_frame(*, acks: int = -1) -> bytes:
    data = PartitionProduceData(index=0, records=bytes(batch_of(b"x")))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)
    header = RequestHeader(
        request_api_key=request.api_key, request_api_version=9, correlation_id=1, client_id="raw"
    )
    body = header.encode(request.header_version(9)) + request.encode(9)
    return struct.pack(">i", len(body)) + body


async def all_gone(broker: Broker) -> None:
    async with asyncio.timeout(10):
        while broker.server.connection_count:
            await asyncio.sleep(0)


async def has_come_and_gone(broker: Broker) -> None:
    (handshakes,) = broker.server.handshakes
    async with asyncio.timeout(10):
        while handshakes.outcomes[Outcome.DONE] < 1:
            await asyncio.sleep(0)
    await all_gone(broker)


async def is_served(broker: Broker, context: ssl.SSLContext | None = None) -> bool:
    """Whether another client gets its answer, and all are gone after that."""
    host = "localhost" if context else "127.0.0.1"
    streams = await asyncio.open_connection(host, broker.listeners[0].port, ssl=context)
    client = RawClient(*streams)
    answer = await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    client.close()
    await all_gone(broker)
    return not answer.error_code


def test_what_a_reset_connection_has_brought_is_under_the_rules_of_its_address(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    runner.run(reset_before_accept(tmp_path))


async def reset_before_accept(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    rights = (("*", Permission.ALLOW), ("127.0.0.1", Permission.DENY))
    async with serving(settings) as broker:
        log = broker.topics.ensure("t").partitions[0]
        assert broker.acls is not None
        broker.acls.add(
            [
                Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:*", host, Operation.ALL, permission)
                for host, permission in rights
            ]
        )
        # The operating system connects the client by itself, before the broker's `accept`.
        client = socket.create_connection(("127.0.0.1", broker.listeners[0].port))
        client.sendall(produce_frame())
        reset(client)
        assert await is_served(broker)
        assert isinstance(log, PartitionLog) and log.log_end_offset == 0


def tls_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a broker with TLS; its certificate and its data go there."""
    pem = make(named((COMMON_NAME, "server")), AUTHORITY).write_pem(directory / "server.pem")
    return {
        "listeners": "SSL://127.0.0.1:0",
        "log.dirs": str(directory / "data"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
    }


def test_a_connection_that_is_reset_with_its_handshake_counts_no_longer(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    runner.run(reset_after_handshake(tmp_path))


async def reset_after_handshake(tmp_path: Path) -> None:
    settings = {**tls_settings(tmp_path), "max.connections.per.ip": "1"}
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    async with serving(settings) as broker:
        await shake_hands_and_reset(broker.listeners[0].port, context)
        await has_come_and_gone(broker)
        assert await is_served(broker, context)


async def shake_hands_and_reset(port: int, context: ssl.SSLContext) -> None:
    """Send the last message of a handshake and reset the connection, in one step."""
    client, _, to_send = await shake_hands(port, context)
    client.send(to_send.read())
    reset(client)


async def shake_hands(
    port: int, context: ssl.SSLContext
) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO]:
    """Return a client's socket, its TLS, and what is to be sent: the handshake's last message."""
    loop = asyncio.get_running_loop()
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_hostname="localhost")
    while not is_done(tls):
        await loop.sock_sendall(client, to_send.read())
        received.write(await loop.sock_recv(client, 1 << 16))
    return client, tls, to_send


@pytest.mark.parametrize("end", ["close_notify", "close", "reset"])
def test_what_a_client_sends_right_before_its_end_is_done_also_with_tls(
    runner: asyncio.Runner, tmp_path: Path, short_turns: None, end: str
) -> None:
    """As in Kafka: a producer with acks=0 waits for nothing. Most of it was lost."""
    runner.run(gone_with_tls(tmp_path, end))


async def gone_with_tls(tmp_path: Path, end: str) -> None:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    async with serving(tls_settings(tmp_path)) as broker:
        log = broker.topics.ensure("t").partitions[0]
        assert isinstance(log, PartitionLog)
        client, tls, to_send = await shake_hands(broker.listeners[0].port, context)
        loop = asyncio.get_running_loop()
        for sent in (200, 400):
            # The second half comes while the connection is not read, since the first has its turns.
            async with asyncio.timeout(10):
                while sent > 200 and not log.log_end_offset:
                    await asyncio.sleep(0)
            tls.write(200 * produce_frame(acks=0))
            await loop.sock_sendall(client, to_send.read())
        if end == "close_notify":
            with suppress(ssl.SSLWantReadError):
                tls.unwrap()
        await loop.sock_sendall(client, to_send.read())
        if end == "reset":
            reset(client)
        else:
            client.close()
        await has_come_and_gone(broker)
        assert log.log_end_offset == 400
        assert is_empty(broker)


def is_done(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_a_connection_that_waits_for_its_turn_is_not_served_before(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    runner.run(one_beyond_the_burst(tmp_path))


async def one_beyond_the_burst(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "max.connection.creation.rate": "1",
        "quota.window.num": "2",
    }
    async with serving(settings, clock=HeldClock()) as broker:
        assert await is_served(broker)
        client = socket.create_connection(("127.0.0.1", broker.listeners[0].port))
        began_s = time.monotonic()
        # These come before the broker has accepted the connection, and one comes later.
        client.sendall(2 * produce_frame())
        client.setblocking(False)
        raw = RawClient(*await asyncio.open_connection(sock=client))
        raw.send(ApiVersionsRequest(), 0)
        assert (await raw.receive())[0] == 1
        # The burst is one connection, so the second waits for a second.
        assert time.monotonic() - began_s > 0.9
        for _ in range(2):
            assert (await raw.receive())[0] == 1
        raw.close()
        await all_gone(broker)


@pytest.mark.parametrize("partition_count", [1, 64])
def test_an_answer_that_is_not_read_is_in_the_account_also_with_tls(
    runner: asyncio.Runner, tmp_path: Path, partition_count: int
) -> None:
    """The event loop encrypted all of it, and counted nothing: 20 clients held 2 GB."""
    runner.run(unread_with_tls(tmp_path, partition_count))


def is_slow(broker: Broker) -> bool:
    """Whether a client has taken next to nothing of its answers for a moment."""
    now_s = asyncio.get_running_loop().time()
    return any(connection.slow_seconds(now_s) > 0.2 for connection in broker.server.connections)


async def unread_with_tls(tmp_path: Path, partition_count: int) -> None:
    settings = {**tls_settings(tmp_path), "message.max.bytes": "33554432"}
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    async with serving(settings) as broker:
        value = b"x" * (UNREAD_BYTES // partition_count)
        for log in broker.topics.create("t", partition_count).local:
            log.append(log.check(batch_of(value), 0))
            await log.durable(log.log_end_offset)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.setblocking(False)
        address = ("127.0.0.1", broker.listeners[0].port)
        await asyncio.get_running_loop().sock_connect(client, address)
        raw = RawClient(
            *await asyncio.open_connection(
                sock=client, ssl=context, server_hostname="localhost", limit=1 << 10
            )
        )
        partitions = [
            FetchPartition(partition=index, partition_max_bytes=2 * UNREAD_BYTES)
            for index in range(partition_count)
        ]
        fetch = FetchRequest(
            session_epoch=-1,
            max_bytes=2 * UNREAD_BYTES,
            topics=[FetchTopic(topic="t", partitions=partitions)],
        )
        raw.send(fetch, 12)
        held = broker.server.response_memory
        async with asyncio.timeout(20):
            while not is_slow(broker):
                await asyncio.sleep(0)
        # What the operating system has taken is no memory of the broker's.
        assert held.held_bytes >= UNREAD_BYTES // 2
        # A connection that is closed sends what was answered, as the client reads it.
        (connection,) = broker.server.connections
        connection.close()
        _, body = await raw.receive()
        answer = FetchResponse.decode(body[FetchResponse.header_version(12) :], 12)
        for partition in answer.responses[0].partitions:
            records = partition.records
            assert isinstance(records, memoryview | bytes)
            assert bytes(records).endswith(value + b"\0")
        assert await raw.is_closed()
        await all_gone(broker)
        assert not held.held_bytes
