"""The sweep of a bucket: by one node, in time, and beside whatever goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from logstore.remote.commit_store import CommitsLost
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import SWEEP_INTERVAL_MS, Pace, Sweep
from magnetar.runtime.kept_history import KeptHistory
from magnetar.runtime.known_history import KnownHistory
from magnetar.runtime.sweeping import Sweeping
from magnetar.storage.history import History
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from tests.magnetar.clocks import HandClock

DUMPED = History("cluster", 0, 3, 10, 2000, {1: (2, 40), 2: (3, 7)})
LATER = DUMPED._replace(commits={1: (2, 45), 2: (3, 9)})


async def _at_once() -> None:
    """What was read is for good."""


class World:
    """A node, a database without logs, and an object that nothing names."""

    def __init__(self, pace: Pace = Pace()) -> None:  # noqa: B008  # never changed
        self.clock = HandClock()
        self.objects = SimulatedObjects()
        self.is_controller = True
        self.failures: list[BaseException] = []
        self.store = SimulatedStore(SimulatedDatabase())
        sweep = Sweep(self.store, self.objects, "logs", _at_once)
        #: What the database says of itself.
        self.history = LATER
        self.known = KnownHistory(None)
        #: Whether a commit shows that the database is the one that all nodes use.
        self.is_proven = asyncio.Event()
        self.is_proven.set()
        kept = KeptHistory(self.objects, "logs", 3, self.known, self.read_history, self.read_proven)
        self.sweeping = Sweeping(
            sweep, kept, pace, self.clock, lambda: self.is_controller, self.failures.append
        )
        self.objects.objects["logs/left-behind"] = b"x"

    async def read_history(self) -> History:
        return self.history

    async def read_proven(self) -> History:
        await self.is_proven.wait()
        return self.history

    async def later(self, count: int = 1) -> bool:
        """Return whether the object is still there after so many intervals."""
        for _ in range(count):
            self.clock.ms += SWEEP_INTERVAL_MS
            await self.sweeping.sweep_if_due()
        return self.is_left

    @property
    def is_left(self) -> bool:
        """Whether the object is still there."""
        return "logs/left-behind" in self.objects.objects


@pytest.fixture
async def world() -> World:
    made = World()
    await made.store.connect()
    return made


async def test_the_controller_alone_sweeps_and_only_every_ten_minutes(world: World) -> None:
    world.is_controller = False
    assert await world.later(5)
    world.is_controller = True
    assert await world.later()
    await world.sweeping.sweep_if_due()
    assert world.is_left
    assert not await world.later()


async def test_ten_minutes_pass_from_the_end_of_a_sweep_however_long_it_took(world: World) -> None:
    async def slowly() -> None:
        world.clock.ms += SWEEP_INTERVAL_MS

    # What a node has written just before the first one looks may be named just after it.
    world.objects.on_way = slowly
    assert await world.later()
    await world.sweeping.sweep_if_due()
    assert world.is_left
    assert not await world.later()


async def test_a_sweep_that_fails_is_told_and_tried_again_in_time(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.objects.loses_request = lambda: True
    assert await world.later(2)
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == 2 * ["objects that nothing names are left for now"]
    world.objects.loses_request = bool
    assert not await world.later(2)


async def test_it_sweeps_beside_whatever_goes_on() -> None:
    world = World(Pace(interval_s=0, first_sweep_ms=0, sweep_interval_ms=0))
    await world.store.connect()
    world.sweeping.start()
    async with asyncio.timeout(10):
        while world.is_left:
            await asyncio.sleep(0)
    await world.sweeping.stop()
    assert world.failures == []


async def test_a_database_that_is_older_than_its_bucket_halts_the_cluster_before_a_sweep() -> None:
    """It was restored from a dump, and no data directory is left that could tell."""
    before = World()
    await before.store.connect()
    for _ in range(2):
        before.known.see(LATER, lambda: True)
    assert await before.later()
    restored = World(Pace(interval_s=0, first_sweep_ms=0, sweep_interval_ms=0))
    restored.objects.objects |= before.objects.objects
    restored.history = DUMPED
    await restored.store.connect()
    restored.is_controller = False
    restored.sweeping.start()
    async with asyncio.timeout(10):
        while not restored.failures:
            await asyncio.sleep(0)
    (failure,) = restored.failures
    assert isinstance(failure, CommitsLost) and "but 45 was there" in str(failure)
    restored.is_controller = True
    with pytest.raises(CommitsLost):
        await restored.sweeping.sweep_if_due()
    assert restored.is_left
    # An administrator has accepted the loss.
    restored.history = DUMPED._replace(repairs=1)
    assert await restored.later()
    assert not await restored.later()


async def test_the_bucket_keeps_the_numbers_of_the_last_sweep_alone(world: World) -> None:
    kept: list[set[str]] = []
    for history in (DUMPED, LATER):
        for _ in range(2):
            world.known.see(history, lambda: True)
        await world.later()
        kept.append({key for key in world.objects.objects if key.startswith("logs-history/")})
    assert [len(keys) for keys in kept] == [1, 1] and kept[0] != kept[1]


async def test_a_node_that_a_fail_over_has_cut_off_halts_no_cluster(world: World) -> None:
    """It reads the old server, and another node has kept what only the new one has."""
    for _ in range(2):
        world.known.see(LATER, lambda: True)
    assert await world.later()
    world.history = DUMPED
    world.is_proven.clear()
    sweep = asyncio.create_task(world.later())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sweep.done()
    # It finds the new server, before its lease ends.
    world.history = LATER
    world.is_proven.set()
    assert not await sweep


async def test_other_things_below_its_prefix_are_no_history(world: World) -> None:
    """A tool that copies a bucket may leave a directory as an object without bytes."""
    for _ in range(2):
        world.known.see(LATER, lambda: True)
    world.objects.objects |= {"logs-history/directory": b"", "logs-history/other": b"x"}
    assert await world.later()
    assert not await world.later()


async def test_in_a_bucket_that_deletes_nothing_no_more_than_two_are_kept(world: World) -> None:
    delete = world.objects.delete

    async def refuse(keys: Sequence[str]) -> None:
        if keys:
            raise ObjectsUnavailable("delete objects", "403")
        await delete(keys)

    world.objects.delete = refuse  # type: ignore[method-assign]  # a bucket of no such right
    for _ in range(2):
        world.known.see(LATER, lambda: True)
    await world.later(5)
    assert sum(key.startswith("logs-history/") for key in world.objects.objects) == 2


async def test_a_key_that_was_given_out_before_a_restore_is_kept(world: World) -> None:
    """The numbers of starts go on from those of the backup."""
    for _ in range(2):
        world.known.see(LATER, lambda: True)
    await world.later()
    kept = {key for key in world.objects.objects if key.startswith("logs-history/")}
    again = World()
    again.objects.objects |= world.objects.objects
    for _ in range(2):
        again.known.see(LATER, lambda: True)
    await again.later()
    assert kept <= again.objects.objects.keys()
