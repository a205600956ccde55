"""Partitions whose newest batches are in a bucket that does not answer hold up no others."""

from __future__ import annotations

import asyncio
import json

import pytest

from logstore.partition.log import PartitionLog
from logstore.remote import offload
from logstore.remote.object_store import ObjectsUnavailable
from magnetar.config.load import load
from magnetar.runtime.late_openings import LateOpenings
from magnetar.runtime.offloading import Offloading
from magnetar.storage.catalog import Catalog
from magnetar.storage.leaders import Elsewhere, NotLeader, Placement
from magnetar.storage.remote_logs import RemoteLogs
from magnetar.storage.topics import Topics
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from tests.magnetar.clocks import HandClock
from wire.records import SimpleRecord, build_batch


class World:
    """One node of a cluster with a bucket, start after start."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.objects = SimulatedObjects()
        self.failures: list[BaseException] = []
        self._catalog = Catalog(None, is_shared=True)
        self._database = SimulatedDatabase()
        self._node: list[tuple[Topics, RemoteLogs]] = []
        self.is_away = False
        self.asked = 0
        self.objects.loses_request = self._loses

    def _loses(self) -> bool:
        self.asked += 1
        return self.is_away

    async def start(self) -> Topics:
        """Begin anew, as the next process does."""
        await self.stop()
        config = load(()).config
        incarnation = self._catalog.nodes.start(1)
        self._database.start_node(1, incarnation)
        logs = RemoteLogs(
            SimulatedStore(self._database, 1, incarnation),
            config,
            self.clock,
            self.failures.append,
            objects=self.objects,
        )
        logs.begin_as(1, incarnation)
        topics = Topics(self._catalog, logs, config, Placement(1, [1], moves=True))
        topics.see_nodes(self._catalog.nodes.epochs())
        self._node = [(topics, logs)]
        async with asyncio.timeout(5):
            await topics.start()
        return topics

    @property
    def logs(self) -> RemoteLogs:
        ((_, logs),) = self._node
        return logs

    async def stop(self) -> None:
        for topics, logs in self._node:
            await topics.stop()
            await logs.close()
        self._node = []

    def late_openings(self) -> LateOpenings:
        ((topics, logs),) = self._node
        assert logs.bulk_store is not None
        return LateOpenings(topics, logs.bulk_store, self.failures.append)

    async def make(self, *moved: str) -> None:
        """Write to topics whose batches move to the bucket, and to `rows`, whose do not."""
        topics = await self.start()
        for name in (*moved, "rows"):
            topics.create(name, 1)
            await self.append(topics.partition(name, 0), 6 if name in moved else 1)
        ((_, logs),) = self._node
        assert logs.bulk is not None
        await Offloading(topics, logs.bulk, self.clock, self.failures.append).move()
        assert len(self.objects.objects) == len(moved)

    async def append(self, log: PartitionLog, count: int) -> None:
        for _ in range(count):
            batch = build_batch([SimpleRecord(b"k", bytes(900), self.clock.ms)])
            log.append(log.check(batch, self.clock.ms))
        await log.durable(log.log_end_offset)


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "OBJECT_BYTES", 4_000)


async def test_a_node_starts_while_the_bucket_is_away_and_opens_the_rest_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    await world.make("a", "b")
    world.is_away = True
    topics = await world.start()
    await world.append(topics.partition("rows", 0), 1)
    late = world.late_openings()
    for name in ("a", "b"):
        with pytest.raises(NotLeader):
            topics.partition(name, 0)
    await late.look()
    await late.look()
    world.is_away = False
    await late.look()
    assert [topics.partition(name, 0).high_watermark for name in ("a", "b", "rows")] == [6, 6, 2]
    await late.look()
    await world.stop()
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in told if line["event"].endswith(("newest batches", "open again"))]
    assert [line.get("partitions") for line in told] == [2, None]
    assert "503" in told[0]["reason"]
    assert world.failures == []


async def test_a_bucket_is_away_for_those_who_have_batches_there() -> None:
    world = World()
    await world.start()
    world.is_away, world.asked = True, 0
    assert (await world.logs.bucket_away(), world.asked) == ("", 0)
    world.is_away = False
    await world.make("a")
    assert await world.logs.bucket_away() == ""
    world.is_away = True
    assert "503" in await world.logs.bucket_away()
    await world.stop()
    assert world.failures == []


async def test_a_bucket_that_is_away_is_asked_once_however_many_logs_it_has() -> None:
    world = World()
    await world.make("a", "b", "c")
    world.is_away, world.asked = True, 0
    topics = await world.start()
    assert world.asked == 1
    for name in ("a", "b", "c"):
        topic = topics.by_name(name)
        assert topic is not None
        await topics.refresh([topic.id])
        assert isinstance(topic.partitions[0], Elsewhere)
    assert world.asked == 1
    await world.stop()


async def test_an_object_that_is_missing_costs_its_own_partition_alone() -> None:
    world = World()
    await world.make("a", "b")
    del world.objects.objects[min(world.objects.objects)]
    topics = await world.start()
    late = world.late_openings()
    await late.look()
    led = [one for topic in topics.all() for one in topic.local]
    assert len(led) == 2
    await world.append(topics.partition("rows", 0), 1)
    await world.stop()
    assert world.failures == []


@pytest.mark.parametrize("bytes_of_it", [b"\0", b"<Error>"])
async def test_an_object_that_is_damaged_costs_its_own_partition_alone(bytes_of_it: bytes) -> None:
    world = World()
    await world.make("a", "b")
    objects = world.objects.objects
    key = min(objects)
    objects[key], whole = (bytes_of_it * len(objects[key]))[: len(objects[key])], objects[key]
    topics = await world.start()
    late = world.late_openings()
    await late.look()
    assert len([one for topic in topics.all() for one in topic.local]) == 2
    # An operator has brought it back from a backup.
    objects[key] = whole
    await late.look()
    assert len([one for topic in topics.all() for one in topic.local]) == 3
    await world.stop()
    assert world.failures == []


@pytest.mark.parametrize("hidden", range(3))
async def test_an_object_out_of_reach_alone_does_not_keep_the_others_shut(hidden: int) -> None:
    world = World()
    await world.make("a", "b", "c")
    out_of_reach = sorted(world.objects.objects)[hidden]
    read = world.objects.read

    async def read_or_not(key: str, position: int, size: int) -> bytes:
        if key == out_of_reach:
            raise ObjectsUnavailable(f"read {key}", "403")
        return await read(key, position, size)

    world.is_away = True
    topics = await world.start()
    world.is_away = False
    world.objects.read = read_or_not  # type: ignore[method-assign]  # one key of a bucket
    late = world.late_openings()
    for _ in range(4):
        await late.look()
    assert len([one for topic in topics.all() for one in topic.local]) == 3
    await world.stop()
    assert world.failures == []


async def test_others_have_their_turn_while_many_partitions_are_looked_at() -> None:
    world = World()
    await world.make("a")
    topics = await world.start()
    topic = topics.all()[0]
    topic.partitions += [Elsewhere(7, 0)] * 20_000
    copies = [topic] * 4
    topics.all = lambda: copies  # As if there were so many.
    looking = asyncio.ensure_future(world.late_openings().look())
    turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    await looking
    assert turns >= 4
    del topic.partitions[-20_000:]
    await world.stop()
