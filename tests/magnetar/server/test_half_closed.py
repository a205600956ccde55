"""Clients that go, or send no more, while what they have sent is not done."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from coordinator.transactions.metadata import TopicPartition
from magnetar.broker import Broker
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.server.test_turns import until_empty
from wire.error_code import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.metadata import MetadataRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

Connect = Callable[[Broker], Awaitable[RawClient]]


@pytest.mark.parametrize("has_gone", [False, True])
async def test_a_join_with_requests_behind_it_ends_with_its_rebalance(
    start_broker: StartBroker, connect: Connect, has_gone: bool
) -> None:
    broker = await start_broker({"group.initial.rebalance.delay.ms": "50"})
    client = await connect(broker)
    await client.ask(FindCoordinatorRequest(key="g"), 1, FindCoordinatorResponse)
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = client.send(join, 3)
    behind = client.send(HeartbeatRequest(group_id="g"), 3)
    if has_gone:
        client.close()
    else:
        client.writer.write_eof()
        correlation_id, body = await asyncio.wait_for(client.receive(), 10)
        assert correlation_id == joined
        answer = JoinGroupResponse.decode(body, 3)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await client.receive())[0] == behind
        assert await client.is_closed()
    async with asyncio.timeout(10):
        while broker.server.connections:
            await asyncio.sleep(0.001)
    await until_empty(broker)


def produce() -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
    topics = [TopicProduceData(name="t", partition_data=data)]
    return ProduceRequest(acks=0, timeout_ms=1_000, topic_data=topics)


async def go(client: RawClient, *, is_reset: bool) -> None:
    """Close the connection once all is sent."""
    await client.writer.drain()
    if is_reset:
        connected = client.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def until_done(broker: Broker, count: int) -> None:
    """Return once all batches are appended, and nothing is left of the producer's connection."""
    async with asyncio.timeout(10):
        while broker.topics.partition("t", 0).log_end_offset < count:
            await asyncio.sleep(0.001)
    await until_empty(broker)
    assert not broker.server.connection_count


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_produce_that_waits_for_a_move_is_done_for_a_producer_that_goes(
    broker: Broker, connect: Connect, is_reset: bool
) -> None:
    broker.topics.create("t", 1, 1)
    broker._placement.moves = True
    broker.server.dispatcher.forget_routes()
    client = await connect(broker)
    with broker.topics.led.moving.moving([TopicPartition("t", 0)]):
        client.send(produce(), 9)
        client.send(produce(), 9)
        await go(client, is_reset=is_reset)
        await asyncio.sleep(0.05)  # Until the broker has heard of the end.
        assert broker.server.connection_count == 1
    await until_done(broker, 2)


async def test_a_produce_that_a_thread_decodes_is_done_for_a_producer_that_goes(
    broker: Broker, connect: Connect
) -> None:
    broker.topics.create("t", 1, 1)
    client = await connect(broker)
    large = produce()
    large.topic_data[0].partition_data *= ELEMENTS_AT_ONCE + 1
    client.send(large, 9)
    while not broker.server.memory.waiting_bytes:
        await asyncio.sleep(0)
    client.send(produce(), 9)
    await go(client, is_reset=True)
    await until_done(broker, ELEMENTS_AT_ONCE + 2)


async def test_what_appends_behind_a_fetch_is_done_for_a_producer_that_goes(
    broker: Broker, connect: Connect
) -> None:
    broker.topics.create("t", 1, 1)
    client = await connect(broker)
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(fetch_offset=0)])]
    for _ in range(2):
        client.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics), 11)
        client.send(MetadataRequest(topics=None), 9)
        client.send(produce(), 9)
    await asyncio.sleep(0.05)  # Until the fetch waits.
    await go(client, is_reset=True)
    await until_done(broker, 2)
    # The others would read for a client that has gone, which needs not even take the answers.
    counts = broker.server.dispatcher.request_counts
    assert [counts[one.api_key] for one in (FetchRequest, MetadataRequest)] == [1, 0]


async def test_nothing_is_begun_for_a_client_that_is_turned_away(
    broker: Broker, connect: Connect
) -> None:
    broker.topics.create("t", 1, 1)
    client = await connect(broker)
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(fetch_offset=0)])]
    client.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics), 11)
    client.send(produce(), 9)
    async with asyncio.timeout(10):
        while not (broker.server.connections and broker.server.connections[0].is_partial):
            await asyncio.sleep(0.001)
    broker.server.turn_away()
    await until_empty(broker)
    assert not broker.server.connection_count
    assert not broker.topics.partition("t", 0).log_end_offset
