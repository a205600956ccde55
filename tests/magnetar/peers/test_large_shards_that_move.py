"""Shards of many transactional ids that move: what is done for each id is not done in one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count, islice
from pathlib import Path

import pytest

from coordinator.transactions.joint import coordinator_partition
from coordinator.transactions.metadata import State, TransactionMetadata
from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.nodes_in_one import two_of

COUNT = 2_000
FIRST_PRODUCER_ID = 7_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with two_of(MovingNodes(tmp_path / "data")) as started:
        await started.all_see()
        yield started.nodes[0]


def fill(broker: Broker, *, age_ms: int) -> tuple[PartitionLog, list[str]]:
    """Give a shard many ids, whose last change is so old; return its log and the ids."""
    store = broker.transactions.store
    topic = broker.topics.ensure_internal(TRANSACTION_STATE)
    if not store.is_open:
        store.open(topic.partitions)
    shard = store.shards[0]
    partition, partitions = shard.state.partition, len(topic.partitions)
    names = (f"x{number}" for number in count())
    homed = (name for name in names if coordinator_partition(name, "", partitions) == partition)
    ids = [*islice(homed, COUNT)]
    now_ms = broker.clock.now_ms()
    records = [
        TransactionMetadata(each, FIRST_PRODUCER_ID + n, 0, 60_000, State.EMPTY, now_ms - age_ms)
        for n, each in enumerate(ids)
    ]
    shard.append_in_parts(records, now_ms)
    return shard.log, ids


async def come_back(broker: Broker, log: PartitionLog) -> None:
    """Unload a shard, and load it again, in one step."""
    store = broker.transactions.store
    store.unload(log.partition)
    assert not len(store.index)
    begin = await store.load(log)
    begin()


async def test_the_deadlines_of_a_shard_that_comes_are_set_in_turns(broker: Broker) -> None:
    log, ids = fill(broker, age_ms=0)
    store = broker.transactions.store
    await come_back(broker, log)
    # The shard serves from this step on.
    assert store.index.transactional_id(FIRST_PRODUCER_ID) == ids[0] and store.find(ids[-1])
    due = store.expiry._due
    assert len(due) < COUNT / 4
    steps = 0
    while len(due) < COUNT:
        before, steps = len(due), steps + 1
        await asyncio.sleep(0)
        assert len(due) - before < COUNT / 4
    assert due.keys() == {*ids}


async def test_ids_of_a_shard_that_comes_expire(broker: Broker) -> None:
    week_ms = broker.config.transactional_id_expiration_ms
    log, ids = fill(broker, age_ms=2 * week_ms)
    await come_back(broker, log)
    store = broker.transactions.store
    while len(store.index):
        await asyncio.sleep(0.001)
    assert all(store.find(each) is None for each in ids)


async def test_a_shard_that_goes_at_once_leaves_no_deadlines(broker: Broker) -> None:
    log, _ = fill(broker, age_ms=0)
    store = broker.transactions.store
    await come_back(broker, log)
    store.unload(log.partition)
    for _ in range(COUNT):
        await asyncio.sleep(0)
    assert not store.expiry._due and not len(store.index)
