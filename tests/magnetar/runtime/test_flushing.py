"""`flush.ms` through a whole broker: what lies in the page cache for that long is synced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.runtime import flushing
from magnetar.runtime.flushing import Flushing
from magnetar.storage.topic import Topic
from tests.magnetar.clocks import HandClock
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
PAGE_CACHE = {"durability": "page-cache"}


def append(broker: Broker, topic: str) -> None:
    now_ms = broker.clock.now_ms()
    log = broker.topics.partition(topic, 0)
    log.append(log.check(build_batch([SimpleRecord(b"k", b"v", now_ms)]), now_ms))


async def test_each_log_is_flushed_when_its_time_has_come(start_broker: StartBroker) -> None:
    clock = HandClock()
    broker = await start_broker(PAGE_CACHE, clock=clock)
    for name, flush_ms in (("soon", "1000"), ("later", "5000")):
        broker.topics.create(name, configs={"flush.ms": flush_ms})
        append(broker, name)
    broker.topics.create("never")
    append(broker, "never")
    flushed = []
    for advance_ms in (999, 1, 1000, 3000):
        clock.ms += advance_ms
        flushed.append(await broker.flushing.flush())
        async with asyncio.timeout(10):
            while not broker.logs._group_commit.is_idle:
                await asyncio.sleep(0.001)
    assert flushed == [0, 1, 0, 1], "what is flushed has nothing to flush"
    append(broker, "soon")
    clock.ms += 1000
    assert await broker.flushing.flush() == 1


@pytest.mark.parametrize(("durability", "is_flushed"), [("page-cache", True), ("fsync", False)])
async def test_the_scheduler_flushes_where_acknowledgements_do_not_mean_disk(
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    durability: str,
    is_flushed: bool,
) -> None:
    settings = {"log.flush.scheduler.interval.ms": "5", "durability": durability}
    broker = await start_broker(settings)
    broker.topics.create("a")
    assert broker.topics.partition("a", 0).config.flush_ms == 5, "the interval is its default"
    looks: list[Flushing] = []
    flush = Flushing.flush

    async def look(flushing: Flushing) -> int:
        looks.append(flushing)
        return await flush(flushing)

    monkeypatch.setattr(Flushing, "flush", look)
    append(broker, "a")
    if is_flushed:
        async with asyncio.timeout(10):
            while not any(broker.logs.sync_durations.counts):
                await asyncio.sleep(0.005)
    else:
        await asyncio.sleep(0.05)
    assert bool(looks) is is_flushed


async def test_partitions_are_gathered_as_they_are_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "_PARTITIONS", 2)
    topics = [broker.topics.create(f"topic{number}", 1) for number in range(5)]
    looked_at: list[Topic] = []

    def local(topic: Topic) -> list[PartitionLog]:
        looked_at.append(topic)
        return [log for log in topic.partitions if isinstance(log, PartitionLog)]

    monkeypatch.setattr(Topic, "local", property(local))
    working = broker.flushing.flush()
    working.send(None)
    assert looked_at == topics[:2]
    working.close()
