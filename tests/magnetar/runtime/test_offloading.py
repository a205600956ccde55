"""The moves of a node to a bucket: by time, failures told once; the sweep beside them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress

import pytest

from logstore.disk.files import Buffer
from logstore.partition.log import PartitionLog
from logstore.remote import offload
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import SWEEP_INTERVAL_MS, Pace
from magnetar.config.load import Given, load
from magnetar.runtime import offloading as offloading_module
from magnetar.runtime.offloading import Offloading
from magnetar.storage.catalog import Catalog
from magnetar.storage.remote_logs import RemoteLogs
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from magnetar.storage.topics import Topics
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from tests.magnetar.clocks import HandClock
from wire.records import SimpleRecord, build_batch


class World:
    """One node that leads two topics of a cluster with a bucket."""

    def __init__(self, *settings: Given) -> None:
        self.clock = HandClock()
        self.objects = SimulatedObjects()
        self.failures: list[BaseException] = []
        config = load(settings).config
        database = SimulatedDatabase()
        database.start_node(1, 0)
        self.logs = RemoteLogs(
            SimulatedStore(database, 1, 0),
            config,
            self.clock,
            self.failures.append,
            objects=self.objects,
        )
        self.logs.begin_as(1, 0)
        self.topics = Topics(Catalog(None), self.logs, config)

    async def start(self, pace: Pace = Pace()) -> Offloading:  # noqa: B008  # never changed
        await self.topics.start()
        await self.logs.open_together([])
        bulk = self.logs.bulk
        assert bulk is not None
        return Offloading(
            self.topics,
            bulk._replace(pace=pace),
            self.clock,
            self.failures.append,
        )

    async def append(self, log: PartitionLog, count: int) -> None:
        end_offset = 0
        for _ in range(count):
            batch = build_batch([SimpleRecord(b"k", bytes(900), self.clock.ms)])
            end_offset = log.append(log.check(batch, self.clock.ms)).end_offset
        await log.durable(end_offset)

    async def stop(self) -> None:
        await self.topics.stop()
        await self.logs.close()


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "OBJECT_BYTES", 4_000)


async def test_clients_topics_move_and_coordinators_do_not() -> None:
    world = World()
    offloading = await world.start()
    for name in ("a", "b", CONSUMER_OFFSETS):
        world.topics.create(name, 1)
    a, b, offsets = (world.topics.partition(each, 0) for each in ("a", "b", CONSUMER_OFFSETS))
    for log in (a, b, offsets):
        await world.append(log, 6)
    await offloading.move()
    topics = {key.split("/")[1] for key in world.objects.objects}
    assert topics == {str(a.topic_id), str(b.topic_id)}
    await world.stop()
    assert world.failures == []


async def test_a_bucket_that_fails_is_told_once_and_costs_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    offloading = await world.start(Pace(interval_s=0, retry_s=(0, 0)))
    world.topics.create("a", 1)
    log = world.topics.partition("a", 0)
    await world.append(log, 6)
    attempts: list[bool] = []

    def loses() -> bool:
        attempts.append(len(attempts) < 3)
        return attempts[-1]

    world.objects.loses_request = loses
    offloading.start()
    while offloading._held or not world.objects.objects:
        world.clock.ms += 1
        await asyncio.sleep(0)
    await offloading.stop()
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "batches stay in the database: they cannot be moved to the bucket",
        "batches move to the bucket again",
    ]
    assert len(attempts) == 4
    await world.stop()
    assert world.failures == []


async def test_others_go_on_while_many_logs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading_module, "_LOOKS_A_TURN", 10)
    world = World()
    offloading = await world.start()
    world.topics.create("a", 55)
    looks = asyncio.create_task(offloading.move())
    turns = 0
    while not looks.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5
    assert not await looks, "nothing is due"
    await world.stop()


class Picky(SimulatedObjects):
    """An object store that refuses the objects of one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""
        self.refusals: list[str] = []

    async def put(self, key: str, data: Buffer) -> None:
        if self.refused in key.split("/"):
            self.refusals.append(key)
            raise ObjectsUnavailable(f"write {key}", "403")
        await super().put(key, data)


async def test_a_topic_whose_objects_are_refused_keeps_no_other_from_moving() -> None:
    world = World()
    world.objects = world.logs._objects = objects = Picky()
    world.logs.begin_as(1, 0)
    offloading = await world.start()
    names = ("a", "b", "c")
    for name in names:
        world.topics.create(name, 1)
    logs = {log.topic: log for log in offloading._led()}
    for refused in names:
        objects.objects.clear()
        objects.refused = str(logs[refused].topic_id)
        for log in logs.values():
            for _ in range(4):
                await world.append(log, 6)
        await offloading.move()
        moved = Counter(key.split("/")[1] for key in objects.objects)
        assert objects.refused not in moved
        # All that the others have goes in one round, and not an object of each.
        assert [*moved.values()] == [4, 4]
        objects.refused = ""
        world.clock.ms += SWEEP_INTERVAL_MS
        await offloading.move()
    await world.stop()
    assert world.failures == []


async def test_a_topic_whose_objects_are_refused_is_told_once_and_tried_ever_more_rarely(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    world.objects = world.logs._objects = objects = Picky()
    world.logs.begin_as(1, 0)
    offloading = await world.start(Pace(retry_s=(5, 60)))
    for name in ("bad", "good"):
        world.topics.create(name, 1)
    bad, good = (world.topics.partition(each, 0) for each in ("bad", "good"))
    objects.refused = str(bad.topic_id)
    await world.append(bad, 6)
    for _ in range(200):
        await world.append(good, 6)
        await offloading.move()
        world.clock.ms += 1_000
    assert len(objects.refusals) == 7, "after 0, 5, 15, 35, 75, 135 and 195 seconds"
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["event"], each["topic"], each["partition"]) for each in told] == [
        ("batches stay in the database: they cannot be moved to the bucket", "bad", 0)
    ]
    objects.refused = ""
    for _ in range(60):
        world.clock.ms += 1_000
        await offloading.move()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "batches move to the bucket again"
    await world.stop()
    assert world.failures == []


async def test_a_topic_of_many_partitions_that_are_all_refused_ends_few_rounds() -> None:
    world = World()
    world.objects = world.logs._objects = objects = Picky()
    world.logs.begin_as(1, 0)
    offloading = await world.start()
    world.topics.create("bad", 20)
    world.topics.create("good", 1)
    objects.refused = str(world.topics.partition("bad", 0).topic_id)
    for log in offloading._led():
        await world.append(log, 6)
    with pytest.raises(ObjectsUnavailable):
        await offloading.move()
    with suppress(ObjectsUnavailable):
        await offloading.move()
    assert len(objects.objects) == 1 and len(objects.refusals) <= 4
    await world.stop()
    assert world.failures == []


async def test_a_bucket_that_is_away_is_asked_for_two_logs_and_then_waited_for() -> None:
    world = World()
    offloading = await world.start()
    world.topics.create("a", 20)
    for log in offloading._led():
        await world.append(log, 6)
    attempts: list[str] = []

    def loses() -> bool:
        attempts.append("")
        return True

    world.objects.loses_request = loses
    for count in (2, 3, 4):
        with pytest.raises(ObjectsUnavailable):
            await offloading.move()
        assert len(attempts) == count
    world.objects.loses_request = bool
    world.clock.ms += SWEEP_INTERVAL_MS
    await offloading.move()
    assert len(world.objects.objects) == 20
    await world.stop()
    assert world.failures == []


async def test_a_log_that_goes_does_not_make_a_bucket_that_is_away_answer_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its topic was deleted, or another node leads it now."""
    world = World()
    offloading = await world.start()
    for name in ("gone", "other"):
        world.topics.create(name, 1)
    await world.append(world.topics.partition("gone", 0), 6)
    world.objects.loses_request = lambda: True
    await offloading.move()
    await world.topics.deletion.perform([world.topics.ensure("gone")])
    await offloading.move()
    assert "again" not in capsys.readouterr().err
    world.objects.loses_request = bool
    await world.append(world.topics.partition("other", 0), 6)
    await offloading.move()
    assert "again" in capsys.readouterr().err
    await world.stop()
    assert world.failures == []


async def test_few_batches_that_could_not_move_are_old_still(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of a log that gets little waited for ten minutes more, after each failure."""
    world = World()
    offloading = await world.start()
    world.topics.create("little", 1)
    await world.append(world.topics.partition("little", 0), 1)
    await offloading.move()
    world.clock.ms += SWEEP_INTERVAL_MS
    world.objects.loses_request = lambda: True
    await offloading.move()
    world.objects.loses_request = bool
    for _ in range(2):
        assert "again" not in capsys.readouterr().err
        world.clock.ms += 4_000
        await offloading.move()
    assert len(world.objects.objects) == 1
    assert "again" in capsys.readouterr().err
    await world.stop()
    assert world.failures == []


async def test_a_topic_that_gets_more_than_the_bucket_takes_keeps_no_other_from_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    offloading = await world.start()
    for name in ("busy", "other"):
        world.topics.create(name, 1)
    busy, other = (world.topics.partition(each, 0) for each in ("busy", "other"))
    for log in (busy, other):
        await world.append(log, 6)
    put = world.objects.put

    async def put_slowly(key: str, data: Buffer) -> None:
        await put(key, data)
        world.clock.ms += SWEEP_INTERVAL_MS
        # What comes meanwhile, but not for ever.
        if len(world.objects.objects) < 6:
            await world.append(busy, 6)
        else:
            assert any(str(other.topic_id) in each for each in world.objects.objects)

    monkeypatch.setattr(world.objects, "put", put_slowly)
    async with asyncio.timeout(10):
        while await offloading.move():
            pass
    await world.stop()
    assert world.failures == []


async def test_a_log_that_comes_while_another_gets_more_than_the_bucket_takes_moves_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that has had its turn, and too little for an object then."""
    world = World()
    offloading = await world.start(Pace(interval_s=0.01))
    for name in ("busy", "quiet"):
        world.topics.create(name, 1)
    logs = {name: world.topics.partition(name, 0) for name in ("busy", "quiet")}
    await world.append(logs["busy"], 6)
    put = world.objects.put
    moved: list[str] = []

    async def put_slowly(key: str, data: Buffer) -> None:
        await put(key, data)
        world.clock.ms += 100
        moved.append(key.split("/")[1])
        if len(moved) == 2:
            world.topics.create("new", 1)
            logs["new"] = world.topics.partition("new", 0)
            for name in ("quiet", "new"):
                await world.append(logs[name], 6)
        await world.append(logs["busy"], 6)

    monkeypatch.setattr(world.objects, "put", put_slowly)
    offloading.start()
    async with asyncio.timeout(10):
        while not {str(log.topic_id) for log in logs.values()} <= {*moved} or len(moved) < 8:
            await asyncio.sleep(0)
    await offloading.stop()
    assert len({*moved[:8]}) == 3, "each has its turn soon"
    await world.stop()
    assert world.failures == []
