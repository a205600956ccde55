"""Retention through a whole broker: what is due goes, in slices, and stays gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.runtime import retention
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.logstore.loop_syncs import watch_syncs_on_loop
from tests.magnetar.clocks import HandClock
from tests.magnetar.conftest import crash
from wire.error_code import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

SECOND_MS = 1_000
ON_DISK = {"durability": "page-cache"}
#: A segment for every batch that is a second later than the one before.
ROLLING = {"segment.ms": "1"}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


async def fill(log: PartitionLog, clock: HandClock, count: int) -> None:
    """Append a record a second, each in a segment of its own, until now."""
    end_offset = 0
    for age in range(count - 1, -1, -1):
        timestamp = clock.ms - age * SECOND_MS
        batch = build_batch([SimpleRecord(b"k", b"v", timestamp)])
        end_offset = log.append(log.check(batch, clock.ms)).end_offset
    await log.durable(end_offset)


async def fetched(client: Any, offset: int) -> tuple[int, int]:
    """Fetch "a"-0 from an offset; returns error code and log start offset."""
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchTopic(topic="a", partitions=[asked])])
    answer = await client.ask(request, 11, FetchResponse)
    partition = answer.responses[0].partitions[0]
    return partition.error_code, partition.log_start_offset


async def test_by_time_and_readers_below_are_told(
    start_broker: StartBroker, connect: Connect, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs={**ROLLING, "retention.ms": "10000"})
    log = broker.topics.partition("a", 0)
    await fill(log, clock, 40)
    client = await connect(broker)
    await broker.retention.check()
    assert (log.log_start_offset, log.log_end_offset) == (29, 40)
    assert await fetched(client, 28) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await fetched(client, 29) == (0, 29)
    assert len(log.ledger.segments.base_offsets) == 11
    clock.ms += 3600 * SECOND_MS
    await broker.retention.check()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (40, 40, 0)
    await fill(log, clock, 1)
    assert await fetched(client, 40) == (0, 40)


async def test_by_size_and_as_changed_while_it_runs(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=ROLLING)
    log = broker.topics.partition("a", 0)
    await fill(log, clock, 10)
    await broker.retention.check()
    assert log.log_start_offset == 0
    kept_bytes = str(log.size_bytes * 4 // 10)
    topic = broker.topics.by_name("a")
    assert topic is not None
    broker.topics.configs.replace(topic, {**ROLLING, "retention.bytes": kept_bytes})
    await broker.retention.check()
    assert log.log_start_offset == 6


async def test_the_brokers_settings_are_the_topics_defaults_but_for_coordinators(
    start_broker: StartBroker, clock: HandClock
) -> None:
    settings = {**ON_DISK, "log.retention.minutes": "1", "log.roll.ms": "1"}
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("a")
    broker.topics.create("kept", configs={"retention.ms": "-1"})
    broker.topics.create("compacted", configs={"cleanup.policy": "compact"})
    internal = broker.topics.ensure(CONSUMER_OFFSETS)
    names = ("a", "kept", "compacted", CONSUMER_OFFSETS)
    logs = [broker.topics.partition(name, 0) for name in names]
    for log in logs:
        await fill(log, clock, 100)
    broker.topics.configs.replace(internal, {"cleanup.policy": "delete", "retention.ms": "1"})
    await broker.retention.check()
    assert [log.log_start_offset for log in logs] == [39, 0, 0, 0]


async def test_many_segments_go_in_slices_and_by_one_sync_for_all_partitions(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    configs = {**ROLLING, "retention.ms": "500"}
    monkeypatch.setattr(retention, "_SEGMENTS", 64)
    logs = broker.topics.create("a", 2, configs=configs).local
    await fill(logs[0], clock, 150)
    await fill(logs[1], clock, 50)
    persisted: list[int] = []
    persist = broker.logs.persist_start_offsets

    async def counted(starts: Any) -> None:
        persisted.append(len(starts))
        await persist(starts)

    monkeypatch.setattr(broker.logs, "persist_start_offsets", counted)
    checking = asyncio.create_task(broker.retention.check())
    counts = []
    while not checking.done():
        counts.append(sum(len(log.ledger.segments.base_offsets) for log in logs))
        await asyncio.sleep(0)
    await checking
    assert [log.log_start_offset for log in logs] == [149, 49]
    assert persisted == [2, 1, 1], "a round for every 64 segments of a partition"
    drops = [before - after for before, after in zip(counts, counts[1:], strict=False)]
    assert max(drops) <= 8, "so many in a turn of the event loop"


async def test_the_event_loop_waits_for_no_sync_of_a_log_that_is_all_due(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such log took a step of four syncs: 5 to 37 ms on a busy disk."""
    broker = await start_broker({"durability": "fsync"}, clock=clock)
    log = broker.topics.create("a", configs={"retention.ms": "500"}).local[0]
    await fill(log, clock, 3)
    on_loop = watch_syncs_on_loop(monkeypatch)
    clock.ms += 3600 * SECOND_MS
    await broker.retention.check()
    assert on_loop == []
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)


async def test_segments_that_stay_cost_a_trim_no_step(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a shared store each step waits for a commit."""
    broker = await start_broker(ON_DISK, clock=clock)
    log = broker.topics.create("a", configs=ROLLING).local[0]
    await fill(log, clock, 100)
    steps: list[int] = []

    async def counted() -> None:
        steps.append(log.log_start_offset)

    monkeypatch.setattr(broker.logs, "after_trim", counted)
    for start_offset in (3, 20, 20, 5, 24):
        await retention.advance(broker.logs, log, start_offset)
    assert steps == [3, 11, 19, 20, 24]


async def test_a_topic_deleted_meanwhile_leaves_nothing_to_the_next_of_its_name(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    configs = {**ROLLING, "retention.ms": "500"}
    for turns in range(6):
        topic = broker.topics.create("a", configs=configs)
        await fill(topic.local[0], clock, 40)
        checking = asyncio.create_task(broker.retention.check())
        for _ in range(turns):
            await asyncio.sleep(0)
        await broker.topics.deletion.perform([topic])
        again = broker.topics.create("a", configs=configs)
        await checking
        assert again.local[0].log_start_offset == 0
        assert not any(
            start for start in broker.logs._found_on_disk._offsets.start_offsets.values()
        )
        await broker.topics.deletion.perform([again])


async def test_a_topic_deleted_while_its_snapshot_is_written_ends_its_trim(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker({"durability": "fsync"}, clock=clock)
    topic = broker.topics.create("a")
    log = topic.local[0]
    await fill(log, clock, 3)
    is_deleted, sync = threading.Event(), DiskFile.sync

    def sync_later(file: DiskFile) -> None:
        assert is_deleted.wait(10)
        sync(file)

    monkeypatch.setattr(DiskFile, "sync", sync_later)
    log.roll_at(3)
    trimming = asyncio.create_task(retention.advance(broker.logs, log, 3))
    await broker.topics.deletion.perform([topic])
    is_deleted.set()
    await trimming
    assert log.log_start_offset == 0


@pytest.mark.parametrize("clean", [True, False])
async def test_what_is_gone_stays_gone_and_the_rest_is_there_after_the_end(
    start_broker: StartBroker, clock: HandClock, clean: bool
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", 2, configs={**ROLLING, "retention.ms": "10000"})
    partly, wholly = (broker.topics.partition("a", index) for index in range(2))
    await fill(partly, clock, 40)
    clock.ms -= 20 * SECOND_MS
    await fill(wholly, clock, 5)
    clock.ms += 20 * SECOND_MS
    await broker.retention.check()
    if clean:
        await broker.stop()
    else:
        broker.retention.stop()
        await crash(broker)
    again = await start_broker(ON_DISK, clock=clock)
    partly, wholly = (again.topics.partition("a", index) for index in range(2))
    assert (partly.log_start_offset, partly.log_end_offset) == (29, 40)
    assert (wholly.log_start_offset, wholly.log_end_offset) == (5, 5)
    clock.ms += 5 * SECOND_MS
    await again.retention.check()  # the times of closed segments are read from the disk
    assert partly.log_start_offset == 34


async def test_checks_come_by_themselves(start_broker: StartBroker, clock: HandClock) -> None:
    broker = await start_broker({"log.retention.check.interval.ms": "10"})
    broker.topics.create("a", configs={**ROLLING, "retention.ms": "10000"})
    log = broker.topics.partition("a", 0)
    for _ in range(2):
        await fill(log, clock, 3)
        end_offset = log.log_end_offset
        async with asyncio.timeout(30):
            while log.log_start_offset < end_offset:
                await asyncio.sleep(0.005)


async def test_partitions_are_gathered_as_they_are_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PARTITIONS", 2)
    topics = [broker.topics.create(f"topic{number}", 1) for number in range(5)]
    looked_at: list[Topic] = []

    def local(topic: Topic) -> list[PartitionLog]:
        looked_at.append(topic)
        return [log for log in topic.partitions if isinstance(log, PartitionLog)]

    monkeypatch.setattr(Topic, "local", property(local))
    working = broker.retention.check()
    working.send(None)
    assert looked_at == topics[:2]
    working.close()
