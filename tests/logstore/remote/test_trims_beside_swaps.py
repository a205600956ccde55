"""A log that is trimmed while the commit is under way by which the cleaner merges its segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.remote.commit_store import Wanted
from logstore.segments.names import aborted_name
from tests.logstore.remote_stores import KEY, SteppedStore
from wire.records import SimpleRecord, build_batch

_T = TypeVar("_T")

#: Segments have two batches: [0, 2), [2, 4), [4, 6), and so on.
LIMITS = LogConfig(segment_bytes=200)
ABORTED = b"the aborted transactions of what was merged"


class World:
    """A log of which the cleaner merges the first two segments."""

    def __init__(self) -> None:
        self.stepped = SteppedStore(LIMITS)
        self.ledger = self.stepped.load(is_wholly_loaded=True)
        self.log = PartitionLog("topic", 0, self.ledger, LIMITS, steady_ms=lambda: 0)
        for _ in self.log.opening(was_clean=True):
            raise AssertionError("an empty log is opened at once")
        for _ in range(10):
            batch = build_batch([SimpleRecord(b"k", bytes(20), 5)], base_offset=0)
            self.log.append(self.log.check(batch, 0))
        self.stepped.executor.run()
        assert [*self.ledger.segments.base_offsets] == [0, 2, 4, 6, 8]
        self.swapped = 0

    async def begin_swap(self) -> asyncio.Future[bool]:
        """Let the commit be under way that merges the first two segments."""
        replacement = self.ledger.segments.replacement([0, 2])
        assert replacement is not None
        for batch in [*self.ledger.batches.iterate(0)][1:4]:
            replacement.append(batch[1], batch[0])
        replacement.seal(ABORTED)
        swapping = asyncio.ensure_future(replacement.swap(_at_once, self._on_swapped))
        await asyncio.sleep(0)
        # The commit begins, and has not its effect yet.
        assert self.stepped.executor.step()
        assert self.stepped.executor.pending
        return swapping

    def _on_swapped(self) -> None:
        self.swapped += 1

    def trim(self, start_offset: int) -> None:
        self.log.advance_start(start_offset)


@pytest.fixture
def world() -> World:
    return World()


async def _at_once(work: Callable[[], _T]) -> _T:
    raise AssertionError("a swap in the store needs no thread")


@pytest.mark.parametrize("start_offset", [1, 2, 3])
async def test_a_trim_takes_no_part_of_what_is_being_merged(
    world: World, start_offset: int
) -> None:
    swapping = await world.begin_swap()
    world.trim(start_offset)
    world.stepped.executor.run()
    assert await swapping
    assert world.swapped == 1
    assert world.ledger.start_offset == start_offset
    assert [*world.ledger.segments.base_offsets] == [0, 4, 6, 8]
    stored = world.stepped.database.load(Wanted(KEY, 0))
    assert [one.base_offset for one in stored.segments] == [0, 4, 6]
    assert stored.attachments[aborted_name(0)] == ABORTED
    world.trim(6)
    world.stepped.executor.run()
    stored = world.stepped.database.load(Wanted(KEY, 0))
    assert [one.base_offset for one in stored.segments] == [6]
    assert stored.first_offset == 6


async def test_a_trim_of_all_that_is_being_merged_takes_it(world: World) -> None:
    swapping = await world.begin_swap()
    world.trim(4)
    world.stepped.executor.run()
    assert not await swapping
    assert world.swapped == 0
    assert [*world.ledger.segments.base_offsets] == [4, 6, 8]
    stored = world.stepped.database.load(Wanted(KEY, 0))
    assert [one.base_offset for one in stored.segments] == [4, 6]
    assert stored.first_offset == 4
    assert aborted_name(0) not in stored.attachments
