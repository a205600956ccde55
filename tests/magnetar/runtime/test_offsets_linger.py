"""Answers to offsets ahead of their data: kept for a moment, and not once data is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from magnetar.broker import Broker
from magnetar.runtime import offsets_linger
from magnetar.runtime.offsets_linger import OffsetsLinger
from magnetar.runtime.precise_timer import PreciseTimerUnavailable, now_ns
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode

Connect = Callable[[Broker], Awaitable[RawClient]]
LINGER_US = 1_000
LINGER_NS = LINGER_US * 1000
MINUTE_US = 60_000_000


class Time:
    """A clock that is turned by hand, and the one timer that goes by it."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000
        self.set_to_ns: int | None = None
        self.callback: Callable[[], None] | None = None
        self.is_closed = False

    def timer(self, callback: Callable[[], None]) -> Time:
        """Stand in for `PreciseTimer`."""
        assert self.callback is None, "one timer"
        self.callback = callback
        return self

    def set(self, at_ns: int) -> None:
        self.set_to_ns = at_ns

    def close(self) -> None:
        self.is_closed = True

    def go_on(self, ns: int) -> None:
        """Let time pass, the timer calling back when it is due."""
        end_ns = self.now_ns + ns
        while self.set_to_ns is not None and self.set_to_ns <= end_ns:
            self.now_ns = max(self.now_ns, self.set_to_ns)
            self.set_to_ns = None
            assert self.callback is not None
            self.callback()
        self.now_ns = end_ns


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(offsets_linger, "now_ns", lambda: time.now_ns)
    monkeypatch.setattr(offsets_linger, "PreciseTimer", time.timer)
    return time


def waiter_of(linger: OffsetsLinger, transactional_id: str) -> asyncio.Future[None]:
    waiter = linger.until_over(transactional_id)
    assert waiter is not None, f"nothing of {transactional_id} lingers"
    return waiter


async def test_an_answer_is_kept_until_its_time(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    time.go_on(LINGER_NS // 2)
    waiter = waiter_of(linger, "t")
    time.go_on(LINGER_NS // 2 - 1)
    assert not waiter.done()
    time.go_on(1)
    assert waiter.done()
    assert linger.until_over("t") is None
    assert len(linger) == 0


async def test_time_runs_from_the_request_for_offsets(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    asked_ns = time.now_ns
    time.go_on(LINGER_NS - 1)
    linger.begin("t", asked_ns)
    waiter = waiter_of(linger, "t")
    time.go_on(1)
    assert waiter.done()


async def test_an_answer_that_comes_later_is_not_kept(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    time.go_on(LINGER_NS)
    assert linger.until_over("t") is None


async def test_data_ends_it(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    waiters = [waiter_of(linger, "t"), waiter_of(linger, "t")]
    linger.end("t")
    assert [waiter.done() for waiter in waiters] == [True, True]
    assert linger.until_over("t") is None


async def test_only_of_the_transaction_that_is_ahead(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    assert linger.until_over("u") is None
    linger.end("u")
    assert not waiter_of(linger, "t").done()


@pytest.mark.parametrize("asking", ["abc", "cab", "bca", "cba"])
async def test_each_is_answered_in_its_time_whoever_asked_first(time: Time, asking: str) -> None:
    linger = OffsetsLinger(LINGER_US)
    for name in "abc":
        linger.begin(name, time.now_ns)
        time.go_on(100)
    waiters = {name: waiter_of(linger, name) for name in asking}
    time.go_on(LINGER_NS - 301)
    for answered in ("", "a", "ab", "abc"):
        assert {name for name, waiter in waiters.items() if waiter.done()} == set(answered)
        time.go_on(100)


async def test_one_that_had_to_wait_to_begin_overtakes_nobody(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    asked_ns = time.now_ns
    time.go_on(100)
    linger.begin("a", time.now_ns)
    linger.begin("b", asked_ns)
    second, first = waiter_of(linger, "b"), waiter_of(linger, "a")
    time.go_on(LINGER_NS - 1)
    assert (first.done(), second.done()) == (False, False)
    time.go_on(1)
    assert (first.done(), second.done()) == (True, True)


async def test_nobody_is_forgotten_where_the_first_is_let_go_early(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("a", time.now_ns)
    time.go_on(100)
    linger.begin("b", time.now_ns)
    first, second = waiter_of(linger, "a"), waiter_of(linger, "b")
    linger.end("a")
    assert first.done()
    time.go_on(LINGER_NS)
    assert second.done()


async def test_who_asks_after_a_time_for_nobody_is_answered_too(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("a", time.now_ns)
    waiter_of(linger, "a")
    linger.end("a")
    time.go_on(100)
    linger.begin("b", time.now_ns)
    time.go_on(LINGER_NS - 50)  # The timer was set for the first.
    second = waiter_of(linger, "b")
    assert not second.done()
    time.go_on(50)
    assert second.done()


async def test_begun_again_it_lingers_anew(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    first = waiter_of(linger, "t")
    time.go_on(LINGER_NS // 2)
    linger.begin("t", time.now_ns)
    assert first.done()
    second = waiter_of(linger, "t")
    time.go_on(LINGER_NS - 1)
    assert not second.done()
    time.go_on(1)
    assert second.done()


async def test_who_has_gone_is_not_answered(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    gone, there = waiter_of(linger, "t"), waiter_of(linger, "t")
    gone.cancel()
    time.go_on(LINGER_NS)
    assert gone.cancelled()
    assert there.done()


async def test_what_is_past_its_time_is_not_remembered(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    for number in range(1_000):
        linger.begin(f"t{number}", time.now_ns)
    assert len(linger) == 1_000
    time.go_on(LINGER_NS)
    linger.begin("t", time.now_ns)
    assert len(linger) == 1


async def test_switched_off_nothing_lingers(time: Time) -> None:
    linger = OffsetsLinger(0)
    linger.begin("t", time.now_ns)
    assert len(linger) == 0
    assert linger.until_over("t") is None


async def test_where_no_timer_is_precise_nothing_lingers(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_callback: object) -> None:
        raise PreciseTimerUnavailable("no more descriptors")

    monkeypatch.setattr(offsets_linger, "PreciseTimer", refuse)
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    assert linger.until_over("t") is None
    linger.begin("u", time.now_ns)
    assert len(linger) == 0


async def test_closing_lets_all_go(time: Time) -> None:
    linger = OffsetsLinger(LINGER_US)
    linger.begin("t", time.now_ns)
    waiter = waiter_of(linger, "t")
    linger.close()
    assert waiter.done()
    assert time.is_closed
    linger.begin("t", time.now_ns)
    assert linger.until_over("t") is None


def test_by_the_clock_that_there_is_on_the_loop_that_serves() -> None:
    async def story() -> None:
        linger = OffsetsLinger(2_000)
        waiter = None
        while waiter is None:  # None where this process stood still for so long.
            began_ns = now_ns()
            linger.begin("t", began_ns)
            waiter = linger.until_over("t")
        await asyncio.wait_for(waiter, 30)
        assert now_ns() - began_ns >= 2_000_000
        linger.close()

    uvloop.run(story())


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
            shard = broker.groups.shards.of(group_id)
            found = len(shard.state.offsets.pending.open_transactions())
            if found and shard.log.high_watermark == shard.log.log_end_offset:
                return found
            await asyncio.sleep(0.001)


async def add(producer: RawProducer) -> int:
    return await producer.add()


async def produce_version_2(producer: RawProducer) -> int:
    return await producer.produce(12)


async def send_offset_of_another_group(producer: RawProducer) -> int:
    return await producer.send_offset("a group of another partition", 6)


async def abort(producer: RawProducer) -> int:
    return await producer.end(commit=False)


@pytest.mark.parametrize("act", [add, produce_version_2, send_offset_of_another_group, abort])
async def test_offsets_are_pending_at_once_and_answered_when_the_transaction_goes_on(
    start_broker: StartBroker, connect: Connect, act: Callable[[RawProducer], Awaitable[int]]
) -> None:
    broker = await whole_broker(start_broker, MINUTE_US)
    partitions = map(broker.groups.partition_of, ("group", "a group of another partition"))
    assert sorted(partitions) == [0, 1]
    producer = RawProducer(await connect(broker), "t")
    beside = RawProducer(await connect(broker), "t")
    assert await producer.init() == ErrorCode.NONE
    beside.identity = producer.identity
    sent = asyncio.ensure_future(producer.send_offset("group", 5))
    assert await pending(broker, "group") == 1
    await asyncio.sleep(0.01)
    assert not sent.done()
    assert await asyncio.wait_for(act(beside), 30) == ErrorCode.NONE
    assert await asyncio.wait_for(sent, 30) == ErrorCode.NONE


async def test_what_lingered_is_committed(start_broker: StartBroker, connect: Connect) -> None:
    broker = await whole_broker(start_broker, 10_000)
    producer = RawProducer(await connect(broker), "t")
    assert await producer.init() == await producer.send_offset("group", 5) == ErrorCode.NONE
    assert await producer.end(commit=True) == ErrorCode.NONE
    (found,) = await broker.groups.offsets.fetch("group", "a", [0], require_stable=True)
    assert found.offset == 5


async def test_a_client_that_leaves_meanwhile_keeps_nobody(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await whole_broker(start_broker, MINUTE_US)
    leaving = RawProducer(await connect(broker), "t")
    assert await leaving.init() == ErrorCode.NONE
    sent = asyncio.ensure_future(leaving.send_offset("group", 5))
    await pending(broker, "group")
    leaving.client.writer.close()
    with pytest.raises((asyncio.IncompleteReadError, OSError)):
        await asyncio.wait_for(sent, 30)
    again = RawProducer(await connect(broker), "t")
    assert await again.init() == await again.add() == ErrorCode.NONE
    assert await asyncio.wait_for(again.send_offset("group", 6), 30) == ErrorCode.NONE
    assert await again.end(commit=True) == ErrorCode.NONE


async def test_offsets_of_version_2_are_not_kept(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await whole_broker(start_broker, MINUTE_US)
    producer = RawProducer(await connect(broker), "t")
    assert await producer.init() == ErrorCode.NONE
    sent = await asyncio.wait_for(producer.send_offset("group", 5, version=5), 30)
    assert sent == ErrorCode.NONE


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
