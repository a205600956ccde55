"""Requests of thousands of elements wait for memory as they came, and are not turned away."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE
from magnetar.runtime.quotas import Kind
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.server import dispatch
from magnetar.server.large_requests import LargeRequests
from magnetar.server.memory import RequestMemory
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.server.test_connection import replace_handler
from tests.magnetar.server.test_quotas import produce, set_quota
from tests.magnetar.server.test_turns import unknown_topics, until_empty
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import Message
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.produce import ProduceRequest, ProduceResponse

Connect = Callable[[Broker], Awaitable[RawClient]]
VERSION = 9
REQUEST = unknown_topics(ELEMENTS_AT_ONCE + 1)
FRAME_BYTES = len(REQUEST.encode(VERSION))
#: Room for two that are decoded, each with 17 times its bytes, and not for a third.
LIMIT_BYTES = 40 * FRAME_BYTES


class Handled:
    """Requests that wait until they are let go, in the order in which they were begun."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[MetadataResponse]] = []

    async def handler(
        self, services: Services, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        future: asyncio.Future[MetadataResponse] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return await future

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.waiting) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
async def narrow(start_broker: StartBroker) -> Broker:
    return await start_broker({"queued.max.request.bytes": str(LIMIT_BYTES)})


@pytest.fixture
def handled(narrow: Broker) -> Handled:
    handled = Handled()
    replace_handler(narrow, MetadataRequest, MetadataResponse, handled.handler)
    return handled


async def asking(broker: Broker, connect: Connect, count: int) -> list[RawClient]:
    """Return clients that have sent a large request each."""
    clients = [await connect(broker) for _ in range(count)]
    for client in clients:
        client.send(REQUEST, VERSION)
    return clients


async def until_undecoded(broker: Broker, count: int) -> None:
    async with asyncio.timeout(30):
        while not 0 <= broker.server.memory.undecoded_bytes - count * FRAME_BYTES < FRAME_BYTES:
            await asyncio.sleep(0.001)


async def test_large_requests_of_many_clients_are_all_answered(
    narrow: Broker, connect: Connect
) -> None:
    for client in await asking(narrow, connect, 15):
        assert (await client.receive())[0] == 1
    await until_empty(narrow)


@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.INVALID_REQUEST), LookupError("a bug")])
async def test_a_large_request_is_refused_in_a_thread_beside_quotas_too(
    broker: Broker, connect: Connect, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_quota(broker, Kind.REQUEST, 0.0001)
    monkeypatch.setattr(dispatch, "ELEMENTS_AT_ONCE", 1)
    api = broker.apis[ProduceRequest.api_key]
    threads: list[bool] = []

    def refuse(*arguments: Any) -> Message | None:
        threads.append(threading.current_thread() is threading.main_thread())
        return api.refuse(*arguments)

    def fail(*_: object) -> Message:
        raise failure

    broker.apis[api.key] = api._replace(handler=fail, refuse=refuse)
    broker.server.dispatcher.forget_routes()
    client = await connect(broker)
    await client.ask(ListGroupsRequest(), 4, ListGroupsResponse)
    client = await connect(broker)
    answer = await client.ask(produce(), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code != ErrorCode.NONE
    assert answer.throttle_time_ms > 0
    assert threads == [False]


async def test_what_is_decoded_at_the_same_time_has_room(
    narrow: Broker, handled: Handled, connect: Connect
) -> None:
    clients = await asking(narrow, connect, 6)
    await until_undecoded(narrow, 4)
    await handled.until_begun(2)
    for begun in range(2, 7):
        assert len(handled.waiting) == begun
        assert narrow.server.memory.waiting_bytes <= LIMIT_BYTES
        handled.waiting[begun - 2].set_result(MetadataResponse())
        await handled.until_begun(min(begun + 1, 6))
    handled.waiting[-1].set_result(MetadataResponse())
    for client in clients:
        await client.receive()
    await until_empty(narrow)


async def test_a_client_that_goes_takes_its_request_along(
    narrow: Broker, handled: Handled, connect: Connect
) -> None:
    first, second = await asking(narrow, connect, 2)
    await handled.until_begun(2)
    (gone,) = await asking(narrow, connect, 1)
    await until_undecoded(narrow, 1)
    (last,) = await asking(narrow, connect, 1)
    await until_undecoded(narrow, 2)
    gone.close()
    await until_undecoded(narrow, 1)
    second.close()
    await handled.until_begun(3)
    for waiting in handled.waiting:
        if not waiting.done():
            waiting.set_result(MetadataResponse())
    await first.receive()
    await last.receive()
    await until_empty(narrow)


async def test_large_requests_that_wait_hold_half_of_the_limit(
    narrow: Broker, handled: Handled, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    await asking(narrow, connect, 30)
    closed = 0
    async with asyncio.timeout(30):
        while closed < 9:
            closed += capsys.readouterr().err.count("a large request may not wait")
            await asyncio.sleep(0.01)
    # Two are decoded.
    assert closed == 9
    await until_undecoded(narrow, 19)
    assert narrow.server.memory.undecoded_bytes <= LIMIT_BYTES // 2


class Request:
    """A request that waits until it may be decoded."""

    size_bytes = 0

    def begin(self, requests: LargeRequests, frame_bytes: int, size_bytes: int) -> bool:
        """Return whether it may be decoded at once."""
        self.admission = requests.admit(self, frame_bytes, size_bytes)
        try:
            self.admission.send(None)
        except StopIteration:
            return True
        return False


async def test_a_request_whose_client_goes_at_once_never_has_memory() -> None:
    memory = RequestMemory(100)
    requests = LargeRequests(memory)
    first, gone, last = Request(), Request(), Request()
    assert first.begin(requests, 5, 80)
    assert not gone.begin(requests, 5, 80)
    # Before any task waits for it.
    with pytest.raises(asyncio.CancelledError):
        gone.admission.throw(asyncio.CancelledError())
    # Nor does anything of it stay until there is room.
    gone_for_good = weakref.ref(gone)
    del gone
    assert gone_for_good() is None
    assert not last.begin(requests, 5, 90)
    memory.give_back_waiting(first.size_bytes)
    assert (last.size_bytes, memory.waiting_bytes) == (90, 90)
    last.admission.close()


async def test_a_request_larger_than_half_of_the_limit_is_decoded_where_there_is_room() -> None:
    memory = RequestMemory(100)
    requests = LargeRequests(memory)
    assert Request().begin(requests, 60, 90)
    with pytest.raises(WireError):
        Request().begin(requests, 60, 90)
    assert (memory.undecoded_bytes, memory.waiting_bytes) == (0, 90)


async def test_large_requests_leave_room_for_others_that_wait() -> None:
    memory = RequestMemory(80_000)
    requests = LargeRequests(memory)
    assert Request().begin(requests, 100, 60_000)
    waiting = Request()
    assert not waiting.begin(requests, 100, 15_000)
    assert memory.hold_waiting(10_000)
    waiting.admission.close()
