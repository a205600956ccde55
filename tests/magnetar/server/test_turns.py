"""One connection that asks for much, or waits with much, beside another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from magnetar.broker import Broker
from magnetar.config.described import TopicSettings
from magnetar.runtime import turns
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.server import unread
from magnetar.server.dispatch import REQUEST_ELEMENTS_MAX
from magnetar.server.memory import SMALL_BYTES_MAX
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.server.test_connection import Gate, replace_handler
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.resource_type import ResourceType

Connect = Callable[[Broker], Awaitable[RawClient]]
_PRODUCE, _METADATA = 9, 9


def is_empty(broker: Broker) -> bool:
    memory = broker.server.memory
    held = memory.in_flight_bytes, memory.partial_bytes, memory.waiting_bytes
    return not any((*held, memory.undecoded_bytes, broker.response_memory.held_bytes))


async def until_empty(broker: Broker) -> None:
    async with asyncio.timeout(30):
        while not is_empty(broker):
            await asyncio.sleep(0.001)


async def test_what_a_producer_sends_before_it_goes_is_appended(
    broker: Broker, connect: Connect, short_turns: None
) -> None:
    """As in Kafka. With acks=0 it waits for nothing, while its requests wait for their turns."""
    broker.topics.create("t", 1, 1)
    client = await connect(broker)
    data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
    topics = [TopicProduceData(name="t", partition_data=data)]
    for _ in range(100):
        client.send(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=topics), _PRODUCE)
    client.close()
    async with asyncio.timeout(30):
        while broker.topics.partition("t", 0).log_end_offset < 100:
            await asyncio.sleep(0.001)
    await until_empty(broker)


async def test_a_connection_that_pipelines_does_not_keep_another_waiting(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every turn is over after one request.
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    begun: list[str] = []

    async def handler(
        services: Services, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        if not begun:
            # When all that the busy client wants is there already.
            other.send(FindCoordinatorRequest(key="other"), 2)
        begun.append(request.key)
        return FindCoordinatorResponse()

    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, handler)
    busy, other = await connect(broker), await connect(broker)
    sent = [busy.send(FindCoordinatorRequest(key="busy"), 2) for _ in range(500)]
    await other.receive()
    assert begun.index("other") < 100
    assert [(await busy.receive())[0] for _ in sent] == sent
    assert begun.count("busy") == 500
    assert is_empty(broker)


async def test_long_requests_of_many_connections_are_decoded_in_turns(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every turn is over after one request.
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    begun: list[str] = []

    async def handler(
        services: Services, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        begun.append(request.key[:5])
        return FindCoordinatorResponse()

    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, handler)
    clients = [await connect(broker) for _ in range(20)]
    other = await connect(broker)
    # All that they send is there before the broker's next step, which receives all of it.
    for client in clients:
        client.send(FindCoordinatorRequest(key="x" * 5000), 2)
    other.send(FindCoordinatorRequest(key="other"), 2)
    await other.receive()
    assert begun.index("other") <= 1
    for client in clients:
        await client.receive()
    assert begun.count("xxxxx") == 20
    assert is_empty(broker)


async def test_large_requests_begin_in_turns(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, steps = 10, list[int]()
    decoded: list[None] = []
    step = 0

    async def handler(
        services: Services, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        steps.append(step)
        return MetadataResponse()

    async def all_at_once(decode: Callable[[], Any]) -> Any:
        # The thread is done with all of them in one step.
        decoded.append(None)
        while len(decoded) < count:
            await asyncio.sleep(0)
        return decode()

    monkeypatch.setattr(turns, "TURN_S", 0.0)
    replace_handler(broker, MetadataRequest, MetadataResponse, handler)
    clients = [await connect(broker) for _ in range(count)]
    monkeypatch.setattr(LARGE_MESSAGES, "run", all_at_once)
    for client in clients:
        client.send(unknown_topics(ELEMENTS_AT_ONCE + 1), _METADATA)
    async with asyncio.timeout(30):
        while len(steps) < count:
            step += 1
            await asyncio.sleep(0)
    # A turn has the one that begins it, and the one that a turn is asked for next.
    assert len(set(steps)) >= count - 1
    for client in clients:
        await client.receive()
    monkeypatch.undo()


def unknown_topics(count: int) -> MetadataRequest:
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(count)]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False)


async def test_a_large_request_is_answered_as_a_small_one_is(
    broker: Broker, client: RawClient
) -> None:
    count = ELEMENTS_AT_ONCE + 1
    before = client.send(HeartbeatRequest(), 4)
    large = client.send(unknown_topics(count), _METADATA)
    behind = client.send(HeartbeatRequest(), 4)
    assert (await client.receive())[0] == before
    correlation_id, body = await client.receive()
    assert correlation_id == large
    answer = MetadataResponse.decode(body[MetadataResponse.header_version(_METADATA) :], _METADATA)
    assert len(answer.topics) == count
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (await client.receive())[0] == behind
    await until_empty(broker)


async def test_few_long_names_are_a_large_request(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand names of 32 KB took the event loop a fifth of a second."""
    run, works = LARGE_MESSAGES.run, []

    def noted(work: Callable[[], object]) -> Awaitable[object]:
        works.append(work)
        return run(work)

    monkeypatch.setattr(LARGE_MESSAGES, "run", noted)
    name = "é" * 16_000
    count = 1 + ELEMENTS_AT_ONCE // (len(name.encode()) // 1024)
    names = [MetadataRequestTopic(name=f"{name}{number}") for number in range(count)]
    request = MetadataRequest(topics=names[: count // 2])
    await client.ask(request, _METADATA, MetadataResponse)
    assert not works
    request = MetadataRequest(topics=names)
    answer = await client.ask(request, _METADATA, MetadataResponse)
    assert [each.name for each in answer.topics] == [each.name for each in names]
    assert len(works) == 3  # It was decoded, encoded and freed there.
    await until_empty(broker)


async def test_a_request_of_too_many_elements_closes_its_connection(
    broker: Broker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.send(unknown_topics(REQUEST_ELEMENTS_MAX + 1), _METADATA)
    assert await client.is_closed()
    assert f"more than {REQUEST_ELEMENTS_MAX} elements" in capsys.readouterr().err
    await until_empty(broker)


async def test_a_large_response_to_a_small_request_is_whole(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("large", ELEMENTS_AT_ONCE)
    answer = await client.ask(MetadataRequest(topics=None), _METADATA, MetadataResponse)
    (topic,) = [topic for topic in answer.topics if topic.name == "large"]
    assert [each.partition_index for each in topic.partitions] == list(range(ELEMENTS_AT_ONCE))


async def test_a_large_response_of_a_handler_that_never_waits_is_whole(
    broker: Broker, client: RawClient
) -> None:
    def at_once(services: Services, request: Message, context: RequestContext) -> Message:
        groups = [ListedGroup(group_id=f"group-{n}") for n in range(ELEMENTS_AT_ONCE + 1)]
        return ListGroupsResponse(groups=groups)

    replace_handler(broker, ListGroupsRequest, ListGroupsResponse, at_once)
    answer = await client.ask(ListGroupsRequest(), 3, ListGroupsResponse)
    assert len(answer.groups) == ELEMENTS_AT_ONCE + 1


def produce(unknown: int) -> ProduceRequest:
    """Return a Produce of a batch to partition 0, and to partitions that do not exist."""
    batch = batch_of(b"x")
    data = [
        PartitionProduceData(index=index, records=batch) for index in (0, *range(1, unknown + 1))
    ]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="a", partition_data=data)]
    )


async def test_a_large_produce_keeps_its_place_among_others(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("a", 1)
    asked = [produce(0), produce(ELEMENTS_AT_ONCE + 1), produce(0)]
    sent = [client.send(each, _PRODUCE) for each in asked]
    offsets = []
    for correlation_id, each in zip(sent, asked, strict=True):
        answered, body = await client.receive()
        assert answered == correlation_id
        answer = ProduceResponse.decode(body[ProduceResponse.header_version(9) :], _PRODUCE)
        (topic,) = answer.responses
        assert len(topic.partition_responses) == len(each.topic_data[0].partition_data)
        first, *others = topic.partition_responses
        offsets.append((first.error_code, first.base_offset))
        assert {one.error_code for one in others} <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert offsets == [(0, 0), (0, 1), (0, 2)]
    await until_empty(broker)


@pytest.fixture
async def narrow(start_broker: StartBroker) -> tuple[Broker, Gate]:
    """A broker with little memory for requests, whose Heartbeat waits until it is let go."""
    broker = await start_broker({"queued.max.request.bytes": "220000"})
    gate = Gate()
    replace_handler(broker, HeartbeatRequest, HeartbeatResponse, gate.handler)
    return broker, gate


async def test_a_request_that_waits_is_accounted_for_until_it_is_answered(
    narrow: tuple[Broker, Gate], connect: Connect
) -> None:
    broker, gate = narrow
    client = await connect(broker)
    sent = client.send(HeartbeatRequest(group_id="x" * 10_000), 4)
    await gate.until_begun(1)
    assert broker.server.memory.waiting_bytes > 10_000
    gate.let_go(sent, HeartbeatResponse())
    assert (await client.receive())[0] == sent
    assert is_empty(broker)


@pytest.mark.parametrize(
    ("names", "taken_bytes"),
    [(["\U0001f600" + "x" * 30_000] * 10, 1_200_000), (["any name"] * 2_000, 128_000)],
    ids=["wide text", "many names"],
)
async def test_a_request_that_waits_counts_with_what_it_decodes_to(
    start_broker: StartBroker, connect: Connect, names: list[str], taken_bytes: int
) -> None:
    """A character beyond the first 65,536 makes each of its text take four bytes."""
    broker, gate = await start_broker({}), Gate()
    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, gate.handler)
    client = await connect(broker)
    sent = client.send(FindCoordinatorRequest(coordinator_keys=names), 4)
    await gate.until_begun(1)
    assert taken_bytes / 2 < broker.server.memory.waiting_bytes < 5 * taken_bytes
    gate.let_go(sent, FindCoordinatorResponse())
    assert (await client.receive())[0] == sent
    assert is_empty(broker)


async def test_requests_that_wait_hold_no_more_than_the_limit(
    narrow: tuple[Broker, Gate], connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, gate = narrow
    clients = [await connect(broker) for _ in range(5)]
    for count, client in enumerate(clients, 1):
        client.send(HeartbeatRequest(group_id="x" * 30_000), 4)
        await gate.until_begun(count)
    # The one that went above the limit, and the one behind it.
    assert await clients[3].is_closed()
    assert await clients[4].is_closed()
    assert "may not wait: others hold queued.max.request.bytes" in capsys.readouterr().err
    # Small ones wait in any case.
    small = await connect(broker)
    sent = small.send(HeartbeatRequest(group_id="x" * (SMALL_BYTES_MAX // 5)), 4)
    await gate.until_begun(6)
    gate.let_go(sent, HeartbeatResponse())
    assert (await small.receive())[0] == sent
    for client in clients:
        client.close()
    await until_empty(broker)


async def test_clients_that_read_nothing_are_closed_once_answers_fill_the_memory(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(unread, "SHORT_OF_MEMORY_S", 1.0)
    broker = await start_broker(
        {"queued.max.request.bytes": "1000000", "socket.send.buffer.bytes": "50000"}
    )

    def large(services: Services, request: Message, context: RequestContext) -> Message:
        return FindCoordinatorResponse(error_message="x" * 30_000)

    replace_handler(broker, FindCoordinatorRequest, FindCoordinatorResponse, large)
    silent = [await connect(broker) for _ in range(15)]
    for client in silent:
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        for _ in range(200):
            client.send(FindCoordinatorRequest(), 2)
    async with asyncio.timeout(30):
        while "of its answers in 1 s while" not in capsys.readouterr().err:
            await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        while broker.response_memory.room_bytes <= 0:
            await asyncio.sleep(0.05)
    for client in silent:
        client.close()
    await until_empty(broker)


async def test_one_setting_is_described_without_building_the_others(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    inherited = TopicSettings.inherited

    def counted(settings: TopicSettings, name: str) -> Any:
        built.append(name)
        return inherited(settings, name)

    monkeypatch.setattr(TopicSettings, "inherited", counted)
    broker.topics.create("a", 1)
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="a", configuration_keys=["retention.ms"]
    )
    asked = DescribeConfigsRequest(resources=[resource])
    answer = await client.ask(asked, 4, DescribeConfigsResponse)
    assert [each.name for each in answer.results[0].configs] == ["retention.ms"]
    assert built == ["retention.ms"]
