"""Order, overlap, refusal and pressure on one connection, seen through real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.apis.mirror import mirror
from magnetar.apis.registry import Api
from magnetar.broker import Broker
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.session import Session
from magnetar.server.connection import ClientConnection
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from wire.messages.produce import ProduceRequest, ProduceResponse
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

Connect = Callable[[Broker], Awaitable[Any]]


class Gate:
    """Handlers that wait until they are let go; `begun` lists what was started, in order."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._waiting: dict[int, asyncio.Future[Message | None]] = {}

    async def handler(
        self, services: Services, request: Message, context: RequestContext
    ) -> Message | None:
        self.begun.append(context.correlation_id)
        future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._waiting[context.correlation_id] = future
        return await future

    def let_go(self, correlation_id: int, response: Message | None) -> None:
        self._waiting.pop(correlation_id).set_result(response)

    def is_abandoned(self, correlation_id: int) -> bool:
        return self._waiting[correlation_id].cancelled()

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)


def replace_handler(
    broker: Broker, request: type[Message], response: type[Message], handler: Any
) -> None:
    """Serve an API of the running broker by `handler`."""
    key = request.api_key
    broker.apis[key] = Api(
        key,
        request.__name__,
        request.min_version,
        request.max_version,
        request,
        response,
        handler,
        mirror(response),
        (),
    )


@pytest.fixture
def gate(broker: Broker) -> Gate:
    gate = Gate()
    replace_handler(broker, ProduceRequest, ProduceResponse, gate.handler)
    replace_handler(broker, OffsetCommitRequest, OffsetCommitResponse, gate.handler)
    replace_handler(broker, TxnOffsetCommitRequest, TxnOffsetCommitResponse, gate.handler)
    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, gate.handler)
    return gate


async def test_produce_requests_overlap_and_are_answered_in_order(gate: Gate, client: Any) -> None:
    first = client.send(ProduceRequest(acks=1), 9)
    second = client.send(ProduceRequest(acks=1), 9)
    await gate.until_begun(2)
    assert gate.begun == [first, second]
    gate.let_go(second, ProduceResponse())
    gate.let_go(first, ProduceResponse())
    assert [(await client.receive())[0] for _ in range(2)] == [first, second]


async def test_what_appends_and_waits_for_a_sync_overlaps(gate: Gate, client: Any) -> None:
    sent = [
        client.send(ProduceRequest(acks=1), 9),
        client.send(TxnOffsetCommitRequest(), 3),
        client.send(OffsetCommitRequest(), 8),
        client.send(TxnOffsetCommitRequest(), 3),
        client.send(ProduceRequest(acks=1), 9),
    ]
    await gate.until_begun(5)
    assert gate.begun == sent
    answers = [ProduceResponse(), TxnOffsetCommitResponse(), OffsetCommitResponse()]
    for correlation_id, answer in zip(
        reversed(sent), [*answers[:2], *reversed(answers)], strict=True
    ):
        gate.let_go(correlation_id, answer)
    assert [(await client.receive())[0] for _ in sent] == sent


@pytest.mark.parametrize(
    ("request_", "version", "response"),
    [
        (OffsetCommitRequest(), 8, OffsetCommitResponse()),
        (TxnOffsetCommitRequest(), 3, TxnOffsetCommitResponse()),
    ],
)
async def test_nothing_else_overtakes_a_commit_of_offsets(
    gate: Gate, client: Any, request_: Message, version: int, response: Message
) -> None:
    commit = client.send(request_, version)
    heartbeat = client.send(HeartbeatRequest(), 4)
    await gate.until_begun(1)
    await asyncio.sleep(0.02)
    assert gate.begun == [commit]
    gate.let_go(commit, response)
    await gate.until_begun(2)
    gate.let_go(heartbeat, HeartbeatResponse())
    assert [(await client.receive())[0] for _ in range(2)] == [commit, heartbeat]


async def test_another_request_starts_when_all_before_it_are_answered(
    gate: Gate, client: Any
) -> None:
    produce = client.send(ProduceRequest(acks=1), 9)
    heartbeat = client.send(HeartbeatRequest(), 4)
    late_produce = client.send(ProduceRequest(acks=1), 9)
    await gate.until_begun(1)
    await asyncio.sleep(0.02)
    assert gate.begun == [produce]
    gate.let_go(produce, ProduceResponse())
    await gate.until_begun(2)
    await asyncio.sleep(0.02)
    assert gate.begun == [produce, heartbeat]
    gate.let_go(heartbeat, HeartbeatResponse())
    await gate.until_begun(3)
    gate.let_go(late_produce, ProduceResponse())
    assert [(await client.receive())[0] for _ in range(3)] == [produce, heartbeat, late_produce]


async def test_a_request_without_an_answer_leaves_no_gap(gate: Gate, client: Any) -> None:
    silent = client.send(ProduceRequest(acks=0), 9)
    heard = client.send(ProduceRequest(acks=1), 9)
    await gate.until_begun(2)
    gate.let_go(heard, ProduceResponse())
    gate.let_go(silent, None)
    assert (await client.receive())[0] == heard


async def test_many_pipelined_requests_are_all_answered(broker: Broker, client: Any) -> None:
    sent = [client.send(MetadataRequest(topics=[]), 4) for _ in range(500)]
    assert [(await client.receive())[0] for _ in sent] == sent
    assert broker.server.memory.in_flight_bytes == 0


async def test_too_many_unanswered_requests_stop_reading(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    broker = await start_broker({"connection.max.in.flight.requests": "3"})
    gate = Gate()
    replace_handler(broker, ProduceRequest, ProduceResponse, gate.handler)
    client = await connect(broker)
    sent = []
    for count in range(1, 5):
        sent.append(client.send(ProduceRequest(acks=1), 9))
        await client.writer.drain()
        if count <= 3:
            await gate.until_begun(count)
    await asyncio.sleep(0.05)
    assert gate.begun == sent[:3]
    gate.let_go(sent[0], ProduceResponse())
    await gate.until_begun(4)
    for correlation_id in sent[1:]:
        gate.let_go(correlation_id, ProduceResponse())
    assert [(await client.receive())[0] for _ in sent] == sent


async def test_nothing_is_started_for_a_client_that_does_not_read(
    broker: Broker, client: Any
) -> None:
    begun = []

    async def huge(broker: Broker, request: Message, context: RequestContext) -> Message:
        begun.append(context.correlation_id)
        return FindCoordinatorResponse(error_message="x" * 30_000)

    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, huge)
    sent = [client.send(FindCoordinatorRequest(), 2) for _ in range(1000)]
    await asyncio.sleep(0.3)
    assert len(begun) < len(sent)
    assert [(await client.receive())[0] for _ in sent] == sent


async def test_a_client_that_does_not_read_is_idle_however_much_it_asked(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    async def huge(broker: Broker, request: Message, context: RequestContext) -> Message:
        return FindCoordinatorResponse(error_message="x" * 30_000)

    broker = await start_broker({"connections.max.idle.ms": "100"})
    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, huge)
    client = await connect(broker)
    for _ in range(1000):
        client.send(FindCoordinatorRequest(), 2)
    async with asyncio.timeout(30):
        while broker.server.connection_count:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\x00\x12\x00\x00\x00\x00\x00\x01",
        struct.pack(">hhih", 3, 4, 1, 500) + b"abc",
        struct.pack(">hhih", 3, 4, 1, -2),
        struct.pack(">hhih", 3, 4, 1, 1) + b"\xff\x00\x00\x00\x00",
        struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">hhih", 9999, 0, 1, -1),
        struct.pack(">hhih", 3, 99, 1, -1),
        struct.pack(">hhih", -5, 0, 1, -1),
    ],
)
async def test_what_is_no_request_closes_that_connection_alone(
    broker: Broker, client: Any, connect: Connect, body: bytes
) -> None:
    other = await connect(broker)
    client.send_frame(body)
    assert await client.is_closed()
    answer = await other.ask(MetadataRequest(topics=[]), 4, MetadataResponse)
    assert answer.brokers[0].node_id == broker.node_id
    assert broker.server.memory.in_flight_bytes == 0


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
async def test_a_frame_of_an_impossible_size_closes_the_connection(client: Any, size: int) -> None:
    client.writer.write(struct.pack(">i", size))
    assert await client.is_closed()


async def test_requests_before_an_impossible_size_are_answered_though_they_wait(
    gate: Gate, client: Any
) -> None:
    produce = client.send(ProduceRequest(acks=1), 9)
    heartbeat = client.send(HeartbeatRequest(), 4)
    client.writer.write(struct.pack(">i", -1))
    await gate.until_begun(1)
    gate.let_go(produce, ProduceResponse())
    await gate.until_begun(2)
    gate.let_go(heartbeat, HeartbeatResponse())
    assert [(await client.receive())[0] for _ in range(2)] == [produce, heartbeat]
    assert await client.is_closed()


async def test_what_waits_as_long_as_its_client_likes_keeps_no_other_from_being_read(
    broker: Broker, gate: Gate, client: Any
) -> None:
    sent = client.send(HeartbeatRequest(group_id="x" * 10_000), 4)
    await gate.until_begun(1)
    assert broker.server.memory.in_flight_bytes == 0
    gate.let_go(sent, HeartbeatResponse())
    assert (await client.receive())[0] == sent
    assert broker.server.memory.in_flight_bytes == 0


async def test_commits_that_wait_for_a_sync_hold_their_memory(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    broker = await start_broker({"queued.max.request.bytes": "100000"})
    gate = Gate()
    replace_handler(broker, OffsetCommitRequest, OffsetCommitResponse, gate.handler)
    client = await connect(broker)
    sent = []
    for count in range(1, 5):
        sent.append(client.send(OffsetCommitRequest(group_id="x" * 14_000), 8))
        await gate.until_begun(count)
    sent += [client.send(OffsetCommitRequest(group_id="x" * 14_000), 8) for _ in range(4)]
    await asyncio.sleep(0.05)
    assert gate.begun == sent[:4]
    assert broker.server.memory.in_flight_bytes > 120_000
    for number, correlation_id in enumerate(sent, 1):
        await gate.until_begun(number)
        gate.let_go(correlation_id, OffsetCommitResponse())
        assert (await client.receive())[0] == correlation_id
    assert broker.server.memory.in_flight_bytes == 0


async def test_a_small_request_behind_one_that_waits_is_not_overdue_where_memory_is_short(
    broker: Broker, gate: Gate, client: Any
) -> None:
    """Its connection was closed after a second or two: its client owed nothing."""
    memory = broker.server.memory
    memory.resize_partial(memory.limit_bytes + 1)  # Of others.
    sent = [client.send(HeartbeatRequest(), 4) for _ in range(2)]
    await gate.until_begun(1)
    assert [memory.overdue() for _ in range(3)] == [None, None, None]
    for number, correlation_id in enumerate(sent, 1):
        await gate.until_begun(number)
        gate.let_go(correlation_id, HeartbeatResponse())
        assert (await client.receive())[0] == correlation_id


async def test_what_stands_behind_a_wait_keeps_no_other_from_being_read(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    broker = await start_broker({"queued.max.request.bytes": "100000"})
    gate = Gate()
    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, gate.handler)
    client, other = await connect(broker), await connect(broker)
    first = client.send(HeartbeatRequest(), 4)
    second = client.send(HeartbeatRequest(group_id="x" * 16_000), 4)
    rest = [client.send(HeartbeatRequest(group_id="x" * 16_000), 4) for _ in range(7)]
    await gate.until_begun(1)
    async with asyncio.timeout(30):
        while broker.server.memory.partial_bytes < 100_000:
            await asyncio.sleep(0.001)
        assert (await other.ask(MetadataRequest(topics=[]), 4, MetadataResponse)).brokers
    for number, correlation_id in enumerate((first, second, *rest), 1):
        await gate.until_begun(number)
        gate.let_go(correlation_id, HeartbeatResponse())
        assert (await client.receive())[0] == correlation_id
    assert (broker.server.memory.partial_bytes, broker.server.memory.in_flight_bytes) == (0, 0)


async def test_nothing_waits_for_a_client_that_has_gone(
    broker: Broker, gate: Gate, client: Any
) -> None:
    client.send(HeartbeatRequest(), 4)
    await gate.until_begun(1)
    client.close()
    async with asyncio.timeout(30):
        while not gate.is_abandoned(1) or broker.server.connections:
            await asyncio.sleep(0.001)


async def test_what_has_arrived_is_done_for_a_client_that_sends_no_more(
    broker: Broker, gate: Gate, client: Any
) -> None:
    """As Kafka does: a producer with acks=0 closes as soon as all is sent."""
    appended = client.send(ProduceRequest(acks=1), 9)
    behind = client.send(HeartbeatRequest(), 4)
    client.writer.write_eof()
    await gate.until_begun(1)
    await asyncio.sleep(0.02)
    gate.let_go(appended, ProduceResponse())
    assert (await client.receive())[0] == appended
    await gate.until_begun(2)
    gate.let_go(behind, HeartbeatResponse())
    assert (await client.receive())[0] == behind
    assert await client.is_closed()
    assert broker.server.memory.in_flight_bytes == 0


async def test_requests_before_the_broken_one_are_answered(gate: Gate, client: Any) -> None:
    sent = client.send(ProduceRequest(acks=1), 9)
    client.send_frame(b"\xff\xff\x00")
    await gate.until_begun(1)
    await asyncio.sleep(0.02)
    gate.let_go(sent, ProduceResponse())
    assert (await client.receive())[0] == sent
    assert await client.is_closed()


async def test_a_newer_client_learns_the_version_of_api_versions(client: Any) -> None:
    body = struct.pack(">hhih", 18, 99, 7, 3) + b"new" + b"\x00future"
    client.send_frame(body)
    correlation_id, answer = await client.receive()
    decoded = ApiVersionsResponse.decode(answer, 0)
    assert correlation_id == 7
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(key.api_key, key.min_version, key.max_version) for key in decoded.api_keys] == [
        (18, 0, 5)
    ]
    again = await client.ask(
        ApiVersionsRequest(client_software_name="raw", client_software_version="1"),
        4,
        ApiVersionsResponse,
    )
    assert again.error_code == ErrorCode.NONE


async def test_a_bug_in_a_handler_is_answered_and_hurts_no_other(
    broker: Broker, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def buggy(broker: Broker, request: Message, context: RequestContext) -> Message:
        raise LookupError("not there")

    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, buggy)
    answer = await client.ask(HeartbeatRequest(), 4, HeartbeatResponse)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "not there" in capsys.readouterr().err
    assert (await client.ask(MetadataRequest(topics=[]), 4, MetadataResponse)).brokers


async def test_a_broken_invariant_stops_the_broker(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    failures: list[BaseException] = []
    broker = await start_broker(on_failure=failures.append)

    async def broken(broker: Broker, request: Message, context: RequestContext) -> Message:
        raise AssertionError("offsets went backwards")

    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, broken)
    client = await connect(broker)
    client.send(HeartbeatRequest(), 4)
    async with asyncio.timeout(30):
        while not failures:
            await asyncio.sleep(0.001)
    assert str(failures[0]) == "offsets went backwards"


async def test_a_timeout_begun_in_the_first_step_ends_it(broker: Broker, client: Any) -> None:
    async def slow(broker: Broker, request: Message, context: RequestContext) -> Message:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return HeartbeatResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        return HeartbeatResponse()

    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, slow)
    answer = await client.ask(HeartbeatRequest(), 4, HeartbeatResponse)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_one_connection_too_many_is_closed(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    broker = await start_broker({"max.connections.per.ip": "2"})
    first, second = await connect(broker), await connect(broker)
    await first.ask(MetadataRequest(topics=[]), 4, MetadataResponse)
    await second.ask(MetadataRequest(topics=[]), 4, MetadataResponse)
    assert await (await connect(broker)).is_closed()
    first.close()
    await asyncio.sleep(0.05)
    third = await connect(broker)
    assert (await third.ask(MetadataRequest(topics=[]), 4, MetadataResponse)).brokers


class Accepted(asyncio.Transport):
    """What the event loop makes of a connection, and tells of a step later."""

    is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is nothing to be written."""

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_connection_accepted_as_the_last_one_before_a_stop_is_closed(
    broker: Broker,
) -> None:
    await broker.server.stop()
    connection, accepted = (
        ClientConnection(broker.server.shared, broker.listeners[0], Session()),
        Accepted(),
    )
    connection.connection_made(accepted)
    assert accepted.is_aborted
    connection.connection_lost(None)


async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect
) -> None:
    broker = await start_broker({"connections.max.idle.ms": "100"})
    gate = Gate()
    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, gate.handler)
    idle, half, waiting = [await connect(broker) for _ in range(3)]
    half.writer.write(struct.pack(">i", 1000) + b"half")
    sent = waiting.send(HeartbeatRequest(), 4)
    await gate.until_begun(1)
    assert await idle.is_closed()
    assert await half.is_closed()
    (connection,) = broker.server._connections
    gate.let_go(sent, HeartbeatResponse())
    assert (await waiting.receive())[0] == sent
    # It has as much time as any for its next request, however long this one took.
    assert connection.idle_seconds(asyncio.get_running_loop().time()) == 0
