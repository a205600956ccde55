"""A disk that is full at any step: a client's batch is refused, or the process ends loudly; and the
next one, with room, lives."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from random import Random

import pytest

from logstore.disk.checkpoints import CLEAN_SHUTDOWN
from logstore.disk.files import StorageFailure
from logstore.disk.room import NoRoom
from tests.logstore.cleaner.test_crashes import World, fill
from tests.logstore.compaction import clean, perform
from tests.logstore.log_process import NOW_MS
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk
from tests.soak import SOAK


class FullDisk(SimulatedDisk):
    """Has no room from an operation on: for that alone, or for all that come after it too.

    Deleting may need room as well, and a sync may be what finds out that there is none.
    """

    full_from = 2**62
    is_full_once = False
    was_full = False

    def before(self, operation: str) -> None:
        super().before(operation)
        if self.operations > self.full_from and not (self.is_full_once and self.was_full):
            self.was_full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation)


def end_if_failed(world: World) -> None:
    """A sync that fails in the background ends the process, as this exception does."""
    if world.failures:
        raise world.failures[0]


def live(world: World) -> list[OSError]:
    """Append over many rolls, delete the first segment, clean, checkpoint, delete a log, stop.

    Returns what kept the cleaner from cleaning: the broker says so, and goes on.
    """
    refusals: list[OSError] = []
    fill(world, 14)
    end_if_failed(world)
    world.trim()
    try:
        assert clean(world.log, world.traffic.now_ms, world.executor.run)
        world.directory.checkpoint_cleaned(world.log)
    except OSError as error:
        refusals.append(error)
    fill(world, 3)
    end_if_failed(world)
    world.timers.run()
    other = world.directory.open("other", 0)
    other.append(other.check(batch_of(b"x"), NOW_MS))
    world.executor.run()
    perform(world.directory.delete([other]))
    world.timers.run()
    world.stop()
    return refusals


@pytest.mark.parametrize("is_full_once", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize("can_sync_all", [True, False])
@pytest.mark.parametrize("ending", ["power", "kill"])
def test_a_disk_that_is_full_at_any_step_ends_the_process_and_loses_nothing(
    ending: str, can_sync_all: bool, is_full_once: bool
) -> None:
    point, was_full = 0, True
    while was_full:
        disk = FullDisk(seed=point, can_sync_all=can_sync_all)
        world = World(disk)
        disk.is_full_once, disk.full_from = is_full_once, disk.operations + point
        told: Sequence[Exception] = []
        try:
            told = live(world) or world.failures
        except (OSError, StorageFailure, NoRoom) as error:
            told = [error]
        was_full = disk.was_full
        assert was_full == bool(told), point
        assert was_full or disk.exists(f"/data/{CLEAN_SHUTDOWN}")
        random = Random(point)
        world.restart(disk.kill(random) if ending == "kill" else disk.crash(random))
        world.check_recovered()
        fill(world, 3)
        world.stop()
        point += 1 if SOAK > 1 else 2
    assert point > 100
