"""Answers to offsets ahead of their data: kept for a moment, and not once data is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from magnetar.broker import Broker
from magnetar.runtime import offsets_linger
from magnetar.runtime.offsets_linger import OffsetsLinger
from magnetar.runtime.precise_timer import PreciseTimerUnavailable, now_ns
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode

Connect = Callable[[Broker], Awaitable[RawClient]]
Make = Callable[[int], OffsetsLinger]
MINUTE_US = 60_000_000


@pytest.fixture
async def linger() -> AsyncIterator[Make]:
    """Makes what keeps answers for so many microseconds; at the end it lets go of all."""
    made: list[OffsetsLinger] = []

    def make(linger_us: int) -> OffsetsLinger:
        made.append(OffsetsLinger(linger_us))
        return made[-1]

    yield make
    for each in made:
        each.close()


def waiter_of(linger: OffsetsLinger, transactional_id: str) -> asyncio.Future[None]:
    waiter = linger.waiter(transactional_id)
    assert waiter is not None, f"nothing of {transactional_id} lingers"
    return waiter


async def test_an_answer_is_kept_until_its_time(linger: Make) -> None:
    lingering = linger(3_000)
    began_ns = now_ns()
    lingering.begin("t")
    await asyncio.wait_for(waiter_of(lingering, "t"), 30)
    assert now_ns() - began_ns >= 3_000_000
    assert lingering.waiter("t") is None
    assert len(lingering) == 0


async def test_an_answer_that_comes_later_is_not_kept(linger: Make) -> None:
    lingering = linger(1_000)
    lingering.begin("t")
    await asyncio.sleep(0.005)
    assert lingering.waiter("t") is None


async def test_data_ends_it(linger: Make) -> None:
    lingering = linger(MINUTE_US)
    lingering.begin("t")
    waiters = [waiter_of(lingering, "t"), waiter_of(lingering, "t")]
    lingering.end("t")
    assert [waiter.done() for waiter in waiters] == [True, True]
    assert lingering.waiter("t") is None


async def test_only_of_the_transaction_that_is_ahead(linger: Make) -> None:
    lingering = linger(MINUTE_US)
    lingering.begin("t")
    assert lingering.waiter("u") is None
    lingering.end("u")
    assert not waiter_of(lingering, "t").done()


async def test_who_began_first_is_answered_first_whoever_asked_first(linger: Make) -> None:
    lingering = linger(5_000)
    answered: list[str] = []
    for name in "abc":
        lingering.begin(name)
        await asyncio.sleep(0.001)

    async def answer(name: str) -> None:
        await waiter_of(lingering, name)
        answered.append(name)

    async with asyncio.timeout(30):
        await asyncio.gather(*map(answer, "cab"))
    assert answered == ["a", "b", "c"]


async def test_nobody_is_forgotten_where_the_first_is_let_go_early(linger: Make) -> None:
    lingering = linger(5_000)
    lingering.begin("a")
    lingering.begin("b")
    first, second = waiter_of(lingering, "a"), waiter_of(lingering, "b")
    lingering.end("a")
    assert first.done()
    await asyncio.wait_for(second, 30)


async def test_begun_again_it_lingers_anew(linger: Make) -> None:
    lingering = linger(4_000)
    lingering.begin("t")
    first = waiter_of(lingering, "t")
    again_ns = now_ns()
    lingering.begin("t")
    assert first.done()
    await asyncio.wait_for(waiter_of(lingering, "t"), 30)
    assert now_ns() - again_ns >= 4_000_000


async def test_who_has_gone_is_not_answered(linger: Make) -> None:
    lingering = linger(2_000)
    lingering.begin("t")
    gone, there = waiter_of(lingering, "t"), waiter_of(lingering, "t")
    gone.cancel()
    await asyncio.wait_for(there, 30)
    assert gone.cancelled()


async def test_what_is_past_its_time_is_not_remembered(linger: Make) -> None:
    lingering = linger(1_000)
    for number in range(1_000):
        lingering.begin(f"t{number}")
    await asyncio.sleep(0.005)
    lingering.begin("t")
    assert len(lingering) == 1


async def test_switched_off_nothing_lingers(linger: Make) -> None:
    lingering = linger(0)
    lingering.begin("t")
    assert len(lingering) == 0
    assert lingering.waiter("t") is None


async def test_where_no_timer_is_precise_nothing_lingers(
    linger: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_callback: object) -> None:
        raise PreciseTimerUnavailable

    monkeypatch.setattr(offsets_linger, "PreciseTimer", refuse)
    lingering = linger(MINUTE_US)
    lingering.begin("t")
    assert lingering.waiter("t") is None
    lingering.begin("u")
    assert len(lingering) == 0


async def test_closing_lets_all_go(linger: Make) -> None:
    lingering = linger(MINUTE_US)
    lingering.begin("t")
    waiter = waiter_of(lingering, "t")
    lingering.close()
    assert waiter.done()
    lingering.begin("t")
    assert lingering.waiter("t") is None


async def whole_broker(start_broker: StartBroker, linger_us: int) -> Broker:
    """A broker whose linger may be longer than its configuration allows."""
    broker = await start_broker({"durability": "fsync"})
    broker.transactions.offsets_linger.close()
    broker.transactions.offsets_linger = OffsetsLinger(linger_us)
    broker.topics.create("a", 1)
    return broker


async def pending(broker: Broker, group_id: str) -> int:
    """Return how many transactions have offsets pending, durably, once there is one."""
    async with asyncio.timeout(30):
        while True:
            shard = broker.groups.shard_of(group_id)
            found = len(shard.state.offsets.pending.open_transactions())
            if found and shard.log.is_durable(shard.log.end_offset):
                return found
            await asyncio.sleep(0.001)


async def test_offsets_are_answered_when_data_is_added_and_pending_before(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await whole_broker(start_broker, MINUTE_US)
    producer = RawProducer(await connect(broker), "t")
    beside = RawProducer(await connect(broker), "t")
    assert await producer.init() == ErrorCode.NONE
    beside.identity = producer.identity
    sent = asyncio.ensure_future(producer.send_offset("group", 5))
    assert await pending(broker, "group") == 1
    await asyncio.sleep(0.01)
    assert not sent.done()
    assert await beside.add() == ErrorCode.NONE
    assert await asyncio.wait_for(sent, 30) == ErrorCode.NONE
    assert await beside.end(commit=True) == ErrorCode.NONE
    (found,) = await broker.groups.offsets.fetch("group", "a", [0], require_stable=True)
    assert found.offset == 5


async def test_offsets_behind_data_are_not_kept(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await whole_broker(start_broker, MINUTE_US)
    producer = RawProducer(await connect(broker), "t")
    assert await producer.init() == await producer.add() == ErrorCode.NONE
    assert await asyncio.wait_for(producer.send_offset("group", 5), 30) == ErrorCode.NONE


async def test_offsets_alone_are_answered_after_the_configured_time(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"transaction.offsets.linger.us": "10000"})
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "t")
    assert await producer.init() == ErrorCode.NONE
    for offset in range(3):
        began_ns = now_ns()
        assert await producer.send_offset("group", offset) == ErrorCode.NONE
        assert now_ns() - began_ns >= 10_000_000
        assert await producer.end(commit=True) == ErrorCode.NONE
