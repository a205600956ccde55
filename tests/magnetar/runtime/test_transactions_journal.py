"""Ends of transactions where a journal makes the appends of one step all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from coordinator.transactions.metadata import State
from coordinator.transactions.records import decode_value
from logstore.partition.client_batch import Appended
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.broker import Broker
from tests.logstore.reading import records_from
from tests.magnetar.conftest import RawClient, StartBroker, crash
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import Record

Connect = Callable[[Broker], Awaitable[RawClient]]

FSYNC = {"durability": "fsync", "transaction.state.log.num.partitions": "1"}


async def open_transaction(broker: Broker, client: RawClient, version: int) -> RawProducer:
    """A transaction with one record, of a Produce of that version."""
    producer = RawProducer(client, "tx")
    assert await producer.init() == ErrorCode.NONE
    if version < 12:
        assert await producer.add() == ErrorCode.NONE
    assert await producer.produce(version) == ErrorCode.NONE
    return producer


def states_logged(broker: Broker) -> Iterator[State]:
    (shard,) = broker.transactions.store.shards
    for _, record in records_from(shard.log.reader, 0):
        assert isinstance(record, Record) and record.value is not None
        yield decode_value("tx", record.value).state


@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_of_a_transaction_of_version_1_is_one_record(
    start_broker: StartBroker, connect: Connect, commit: bool
) -> None:
    broker = await start_broker(FSYNC)
    broker.topics.create("a", 1)
    producer = await open_transaction(broker, await connect(broker), 11)
    assert await producer.end(commit=commit) == ErrorCode.NONE
    ended = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
    assert list(states_logged(broker)) == [State.EMPTY, State.ONGOING, ended]
    # It is all that a start needs to know.
    await crash(broker)
    broker = await start_broker(FSYNC)
    assert [txn.state for txn in broker.transactions] == [ended]
    log = broker.topics.partition("a", 0)
    assert log.last_stable_offset == log.high_watermark == 2
    producer.client = await connect(broker)
    assert await producer.end(commit=commit) == ErrorCode.NONE
    assert await producer.end(commit=not commit) == ErrorCode.INVALID_TXN_STATE


async def test_that_of_version_2_and_without_a_journal_is_decided_first(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    decided = [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT]
    for settings, version, logged in (
        (FSYNC, 12, decided),
        (FSYNC | {"durability": "page-cache"}, 11, [*decided, State.COMPLETE_COMMIT]),
    ):
        directory = {"log.dirs": str(tmp_path / settings["durability"])}
        broker = await start_broker(settings | directory)
        broker.topics.create("a", 1)
        producer = await open_transaction(broker, await connect(broker), version)
        end_version = 5 if version == 12 else 4
        assert await producer.end(commit=True, version=end_version) == ErrorCode.NONE
        assert list(states_logged(broker))[: len(logged)] == logged


@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), MemoryError()])
async def test_an_end_of_which_a_marker_fails_stops_and_leaves_nothing_of_it(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    failures: list[BaseException] = []
    broker = await start_broker(FSYNC, on_failure=failures.append)
    broker.topics.create("a", 1)
    producer = await open_transaction(broker, await connect(broker), 11)
    # In `__consumer_offsets`, whose marker comes first, it has something too.
    assert await producer.send_offset("group", 1) == ErrorCode.NONE
    append_marker = PartitionLog.append_marker

    def fail_in_a(log: PartitionLog, marker: TransactionMarker, now_ms: int) -> Appended:
        if log.topic == "a":
            raise failure
        return append_marker(log, marker, now_ms)

    monkeypatch.setattr(PartitionLog, "append_marker", fail_in_a)
    assert await producer.end(commit=True) != ErrorCode.NONE
    assert failures == [failure]
    # Nothing of it becomes durable: a sync that was about to begin does not.
    await asyncio.sleep(0.05)
    monkeypatch.setattr(PartitionLog, "append_marker", append_marker)
    await crash(broker)
    broker = await start_broker(FSYNC)
    assert [txn.state for txn in broker.transactions] == [State.ONGOING]
    producer.client = await connect(broker)
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert broker.topics.partition("a", 0).last_stable_offset == 2
