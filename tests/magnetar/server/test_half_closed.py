"""Clients that close their side of a connection while what they have sent is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator.transactions.metadata import TopicPartition
from magnetar.broker import Broker
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.server.test_turns import until_empty
from wire.error_code import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
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


async def test_a_produce_that_waits_for_a_move_is_done_for_a_producer_that_goes(
    broker: Broker, connect: Connect
) -> None:
    broker.topics.create("t", 1, 1)
    broker._placement.moves = True
    broker.server.dispatcher.forget_routes()
    client = await connect(broker)
    data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
    topics = [TopicProduceData(name="t", partition_data=data)]
    with broker.topics.led.moving.moving([TopicPartition("t", 0)]):
        client.send(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=topics), 9)
        client.close()
        await asyncio.sleep(0.05)  # Until the broker has heard of the end.
    async with asyncio.timeout(10):
        while broker.topics.partition("t", 0).log_end_offset < 1:
            await asyncio.sleep(0.001)
    await until_empty(broker)
