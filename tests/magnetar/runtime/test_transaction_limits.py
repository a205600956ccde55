"""Limits of transactions, on a whole broker: how many, how long, and what the log says of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from coordinator.transactions.metadata import State, TopicPartition
from logstore.partition.client_batch import Appended
from logstore.partition.reader import Isolation
from magnetar.broker import Broker
from tests.magnetar.clocks import MovedClock
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.records import SimpleRecord, build_batch

A0 = TopicPartition("a", 0)
Connect = Callable[[Broker], Awaitable[RawClient]]


async def test_beyond_max_active_transactions_a_begin_is_asked_to_wait(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"max.active.transactions": "1"})
    broker.topics.create("a", 1)
    client = await connect(broker)
    first, second = RawProducer(client, "first"), RawProducer(client, "second")
    assert [await first.init(), await second.init()] == [0, 0]
    assert await first.add() == ErrorCode.NONE
    assert await second.add() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await second.produce(12) == ErrorCode.CONCURRENT_TRANSACTIONS
    # The one that is open may go on.
    assert await first.add() == ErrorCode.NONE
    assert await first.end(commit=True) == ErrorCode.NONE
    assert broker.transactions.open_count == 0
    assert await second.produce(12) == ErrorCode.NONE
    assert await first.add() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await second.end(commit=True, version=5) == ErrorCode.NONE
    assert await first.add() == ErrorCode.NONE


async def test_a_vote_does_not_count_as_an_active_transaction(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"max.active.transactions": "1"})
    broker.topics.create("a", 1)
    client = await connect(broker)
    names = ("query~>0", "query~>1", "query", "other")
    first, second, parent, other = (RawProducer(client, name) for name in names)
    for child in (first, second):
        assert await child.init() == await child.add() == await child.produce(11) == ErrorCode.NONE
        assert await child.end(commit=True) == ErrorCode.NONE
    assert (broker.transactions.open_count, broker.transactions.store.index.vote_count) == (0, 2)
    # The parent's own transaction counts, and so it needs a place to decide the votes.
    assert await other.init() == await other.add() == ErrorCode.NONE
    assert await parent.init() == ErrorCode.NONE
    assert await parent.add() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await other.end(commit=False) == ErrorCode.NONE
    assert await parent.add() == await parent.end(commit=True) == ErrorCode.NONE


class LaboriousClock(MovedClock):
    """A clock that advances by a millisecond with each reading."""

    def now_ms(self) -> int:
        self.passed_ms += 1
        return super().now_ms()

    def steady_ms(self) -> int:
        self.passed_ms += 1
        return super().steady_ms()


async def test_a_start_that_takes_its_time_over_many_ids_moves_no_timeout(
    start_broker: StartBroker, connect: Connect
) -> None:
    settings = {"durability": "page-cache", "transaction.state.log.num.partitions": "1"}
    broker = await start_broker(settings)
    broker.topics.create("a", 1)
    client = await connect(broker)
    for number in range(200):
        assert await RawProducer(client, f"idle-{number}").init() == ErrorCode.NONE
    producer = RawProducer(client, "open")
    assert await producer.init() == ErrorCode.NONE
    assert await producer.add() == ErrorCode.NONE
    await broker.stop()
    broker = await start_broker(settings, clock=LaboriousClock())
    # Wall time and steady time are the same but for a few readings: the clock was not set.
    due_ms, due_steady_ms = broker.transactions.store.expiry._due["open"]
    assert abs(due_steady_ms - due_ms) < 100


@pytest.mark.parametrize("durability", ["fsync", "memory"])
async def test_a_timeout_of_half_a_second_ends_the_transaction_and_its_culprit_is_named(
    start_broker: StartBroker,
    connect: Connect,
    durability: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = await start_broker({"durability": durability})
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init(timeout_ms=500) == ErrorCode.NONE
    began = time.monotonic()
    assert await producer.add() == ErrorCode.NONE
    assert await producer.produce(11) == ErrorCode.NONE
    log = broker.topics.partition("a", 0)
    while log.last_stable_offset < 2:
        assert time.monotonic() - began < 30, "never ended"
        await asyncio.sleep(0.002)
    assert time.monotonic() - began >= 0.499
    # Aborted, and the client hears of it.
    found = log.reader.read(0, 1000, Isolation.READ_COMMITTED)
    assert found is not None and found.aborted
    assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert broker.transactions.timed_out == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "{" in line]
    (told,) = [line for line in lines if line["event"] == "transaction timed out"]
    assert told["transactional_id"] == "tx"
    assert told["client_id"] == "raw"
    assert told["client_address"].startswith("127.0.0.1")
    assert told["txn_id"].endswith(f"-{producer.identity.producer_id:016x}")
    assert (told["timeout_ms"], told["partitions"]) == (500, 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, -(2**31)])
async def test_a_timeout_that_cannot_be_is_refused(
    broker: Broker, client: RawClient, timeout_ms: int
) -> None:
    producer = RawProducer(client, "tx")
    assert await producer.init(timeout_ms) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert broker.transactions.find("tx") is None
    assert len(broker.transactions.clients) == 0


async def test_an_id_long_unused_is_forgotten_by_a_tombstone_also_after_a_restart(
    start_broker: StartBroker, connect: Connect
) -> None:
    settings = {"durability": "fsync", "transactional.id.expiration.ms": "1000"}
    broker = await start_broker(settings)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init() == ErrorCode.NONE
    assert len(broker.transactions.clients) == 1
    while broker.transactions.find("tx") is not None:
        await asyncio.sleep(0.01)
    assert len(broker.transactions.clients) == 0
    assert broker.transactions.find_by_producer(producer.identity.producer_id) is None
    assert await producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    await broker.stop()
    again = await start_broker({"durability": "fsync"})
    assert again.transactions.find("tx") is None


async def test_silent_producers_are_forgotten_in_a_partition_without_writes(
    start_broker: StartBroker, connect: Connect
) -> None:
    clock = MovedClock()
    settings = {
        "producer.id.expiration.ms": "3600000",
        "producer.id.expiration.check.interval.ms": "10",
        "transaction.healing.interval.ms": "0",
    }
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init() == await producer.produce(12) == ErrorCode.NONE
    log = broker.topics.partition("a", 0)
    clock.passed_ms = 3_600_000
    await asyncio.sleep(0.1)
    assert list(log.producers) == [producer.identity.producer_id]  # its transaction is open
    assert await producer.end(commit=False, version=5) == ErrorCode.NONE
    clock.passed_ms *= 3
    deadline = time.monotonic() + 10
    while log.producers and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not log.producers


async def test_partitions_forget_the_children_that_their_coordinator_forgets(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Each task of a job is a child of its own, and would leave a state in each partition."""
    clock = MovedClock()
    broker = await start_broker(clock=clock)
    broker.topics.create("a", 1)
    client = await connect(broker)
    producers = broker.topics.partition("a", 0).producers
    for batch in range(30):
        parent = RawProducer(client, "query")
        tasks = [RawProducer(client, f"query~>{batch}.{task}") for task in range(3)]
        for each in (*tasks, parent):
            assert await each.init() == await each.add() == await each.produce(11) == 0
            assert await each.end(commit=True) == ErrorCode.NONE
        clock.passed_ms += 600_000
        broker.transactions.expire_due()
        await broker.healing.sweep()
        # joint.child.expiration.ms is an hour, in which a child may go on: five batches.
        assert len(producers) == 3 * min(batch + 1, 5) + 1
    assert not broker.transactions.store.take_forgotten()


async def test_a_child_that_goes_on_is_not_forgotten(
    start_broker: StartBroker, connect: Connect
) -> None:
    """In version 1 its sequence goes on too, by which a batch sent twice is told."""
    clock = MovedClock()
    broker = await start_broker(clock=clock)
    broker.topics.create("a", 1)
    client = await connect(broker)
    parent, child = RawProducer(client, "query"), RawProducer(client, "query~>0")
    assert await parent.init() == await child.init() == ErrorCode.NONE
    for sequence in range(4):
        for each in (child, parent):
            assert await each.add() == await each.produce(11, sequence=sequence) == ErrorCode.NONE
            assert await each.end(commit=True) == ErrorCode.NONE
        clock.passed_ms += 3_000_000
        broker.transactions.expire_due()
        await broker.healing.sweep()
    state = broker.topics.partition("a", 0).producers[child.identity.producer_id]
    assert len(list(state.remembered())) == 4


async def test_setting_the_wall_clock_ahead_does_not_store_a_retry_twice(
    start_broker: StartBroker,
) -> None:
    clock = MovedClock()
    broker = await start_broker(clock=clock)
    broker.topics.create("a", 1)
    log = broker.topics.partition("a", 0)

    def produce(producer_id: int) -> Appended:
        batch = build_batch(
            [SimpleRecord(None, b"value", clock.now_ms())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        return log.append(log.check(batch, clock.now_ms()))

    first = produce(7)
    clock.set_by_ms = 25 * 3_600_000
    # With an append silent producers are looked for.
    produce(8)
    again = produce(7)
    assert again.is_duplicate
    assert again.base_offset == first.base_offset


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_setting_the_wall_clock_ends_no_transaction_and_keeps_none(
    start_broker: StartBroker, connect: Connect, set_by_ms: int
) -> None:
    clock = MovedClock()
    broker = await start_broker(clock=clock)
    broker.topics.create("a", 1)
    client = await connect(broker)
    before, after = RawProducer(client, "before"), RawProducer(client, "after")
    assert await before.init(10_000) == await before.add() == ErrorCode.NONE
    clock.set_by_ms = set_by_ms
    assert await after.init(10_000) == await after.add() == ErrorCode.NONE
    for passed_ms, is_open in ((9_000, True), (10_100, False)):
        clock.passed_ms = passed_ms
        broker.transactions.expire_due()
        for name in ("before", "after"):
            txn = broker.transactions.find(name)
            assert txn is not None and (txn.state is State.ONGOING) is is_open, name
    assert await before.end(commit=True) == ErrorCode.PRODUCER_FENCED


async def test_a_transaction_begun_while_the_clock_was_ahead_lasts_no_longer_than_its_timeout(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Its start is stored in wall time. Once the clock is right again, that lies in the future."""
    clock = MovedClock()
    clock.set_by_ms = 3_600_000
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init(10_000) == await producer.add() == ErrorCode.NONE
    await broker.stop()
    clock.set_by_ms = 0
    again = await start_broker(settings, clock=clock)
    clock.passed_ms = 10_100
    again.transactions.expire_due()
    txn = again.transactions.find("tx")
    assert txn is not None and txn.state is not State.ONGOING


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("set_by_ms", [0, 10**9, -(10**9)])
async def test_an_id_whose_transaction_has_ended_is_forgotten_once_it_was_idle(
    start_broker: StartBroker, connect: Connect, version: int, set_by_ms: int
) -> None:
    """Counted from the timeout that the transaction would have had; the clock may be set before."""
    clock = MovedClock()
    broker = await start_broker({"transactional.id.expiration.ms": "100000"}, clock=clock)
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init(10_000) == await producer.add() == ErrorCode.NONE
    assert await producer.end(commit=True, version=version) == ErrorCode.NONE
    broker.transactions.store.completions.complete_all()
    clock.set_by_ms = set_by_ms
    for passed_ms, is_known in ((10_100, True), (99_000, True), (110_300, False)):
        clock.passed_ms = passed_ms
        broker.transactions.expire_due()
        assert (broker.transactions.find("tx") is not None) is is_known, passed_ms
    assert broker.transactions.timed_out == 0


async def test_an_id_is_forgotten_in_time_where_it_is_idle_for_less_than_its_timeout(
    start_broker: StartBroker, connect: Connect
) -> None:
    clock = MovedClock()
    broker = await start_broker({"transactional.id.expiration.ms": "5000"}, clock=clock)
    broker.topics.create("a", 1)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init(60_000) == await producer.add() == ErrorCode.NONE
    assert await producer.end(commit=True) == ErrorCode.NONE
    for passed_ms, is_known in ((4_000, True), (5_500, False)):
        clock.passed_ms = passed_ms
        broker.transactions.expire_due()
        assert (broker.transactions.find("tx") is not None) is is_known, passed_ms


async def test_an_id_is_forgotten_in_time_though_its_last_change_came_while_it_was_idle(
    start_broker: StartBroker, connect: Connect
) -> None:
    clock = MovedClock()
    broker = await start_broker({"transactional.id.expiration.ms": "10000"}, clock=clock)
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init(60_000) == ErrorCode.NONE
    clock.passed_ms = 5_000
    # It aborts nothing, and raises the epoch.
    assert await producer.end(commit=False, version=5) == ErrorCode.NONE
    broker.transactions.store.completions.complete_all()
    for passed_ms, is_known in ((10_100, True), (14_000, True), (15_500, False)):
        clock.passed_ms = passed_ms
        broker.transactions.expire_due()
        assert (broker.transactions.find("tx") is not None) is is_known, passed_ms


@pytest.mark.parametrize("version", [4, 5])
async def test_a_small_max_message_bytes_of_the_state_topic_holds_back_no_end(
    start_broker: StartBroker, connect: Connect, version: int
) -> None:
    """Nor does it end the broker, for good: whatever is decided finds room in the log."""
    clock = MovedClock()
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("a", 1)
    client = await connect(broker)
    ended, late = RawProducer(client, "ended"), RawProducer(client, "late")
    for producer in (ended, late):
        assert await producer.init(10_000) == await producer.add() == ErrorCode.NONE
        assert await producer.produce(11) == ErrorCode.NONE
    state = broker.topics.by_name("__transaction_state")
    assert state is not None
    broker.topics.configs.replace(state, {**state.configs, "max.message.bytes": "10"})
    assert await ended.end(commit=True, version=version) == ErrorCode.NONE
    await broker.stop()
    clock.passed_ms = 10_000
    again = await start_broker(settings, clock=clock)
    async with asyncio.timeout(30):
        while again.transactions.open_count:
            await asyncio.sleep(0.01)
    log = again.topics.partition("a", 0)
    assert log.last_stable_offset == log.log_end_offset
    assert await RawProducer(await connect(again), "another").init() == ErrorCode.NONE


async def abandon(broker: Broker, count: int) -> None:
    """Open `count` transactions, all of which time out at the same moment."""
    transactions = broker.transactions
    for start in range(0, count, 500):
        names = [f"tx-{number}" for number in range(start, start + 500)]
        identities = await asyncio.gather(
            *(transactions.init_producer_id(name, 900_000, None) for name in names)
        )
        await asyncio.gather(
            *(
                transactions.holds.add_partitions(name, identity, frozenset({A0}))
                for name, identity in zip(names, identities, strict=True)
            )
        )


@pytest.mark.parametrize(("durability", "count"), [("memory", 10_000), ("fsync", 2_000)])
async def test_ten_thousand_abandoned_transactions_end_at_once_and_others_are_served(
    start_broker: StartBroker, durability: str, count: int
) -> None:
    clock = MovedClock()
    broker = await start_broker({"durability": durability}, clock=clock)
    broker.topics.create("a", 1)
    await abandon(broker, count)
    assert broker.transactions.open_count == count
    clock.passed_ms = 900_000
    most, before = 0, 0
    broker.transactions.expire_due()
    deadline = time.monotonic() + 100
    while not all(txn.state is State.COMPLETE_ABORT for txn in broker.transactions):
        assert time.monotonic() < deadline, "not all have ended"
        for _ in range(20):
            # One turn of the loop, in which others are served.
            await asyncio.sleep(0)
            ended = broker.transactions.timed_out
            most, before = max(most, ended - before), ended
    assert broker.transactions.timed_out == count
    await broker.transactions.durable()
    log = broker.topics.partition("a", 0)
    assert log.last_stable_offset == log.log_end_offset == count
    assert 0 < most <= 100, "so many in one turn of the event loop"
