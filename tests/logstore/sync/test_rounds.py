"""Several syncs under way at once, of a medium that makes room, and ledgers that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.sync.group_commit import CommittedLedger, GroupCommit, Sync
from logstore.sync.medium import Performed
from tests.logstore.simulated_executors import SteppedExecutor


class Line(CommittedLedger):
    """A ledger without bytes."""

    def __init__(self, group_commit: GroupCommit) -> None:
        super().__init__(group_commit)
        self._group_commit = group_commit
        #: What was told of its waiters, in order.
        self.told: list[tuple[int, Exception | None]] = []

    def append(self) -> None:
        self._group_commit.touch(self)
        self.end_offset += 1
        end = self.end_offset
        self.when_durable(end, lambda failure: self.told.append((end, failure)))

    def begin_sync(self) -> Sync:
        self._begun_end_offset = self.end_offset
        return Sync(self.end_offset)


class Medium:
    """What was begun and has not ended, the oldest first."""

    def __init__(self, turn: Callable[[], None]) -> None:
        """`turn` is the next turn of the event loop."""
        self._turn = turn
        self.begun: list[tuple[list[int], Performed, Callable[[], None]]] = []

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        self.begun.append(([sync.end_offset for sync in syncs], done, make_room))

    @property
    def ends(self) -> list[list[int]]:
        return [ends for ends, _, _ in self.begun]

    def make_room(self) -> None:
        self.begun[-1][2]()
        self._turn()

    def end(self, failure: StorageFailure | None = None) -> None:
        self.end_in_this_turn(failure)
        self._turn()

    def end_in_this_turn(self, failure: StorageFailure | None = None) -> None:
        self.begun.pop(0)[1](failure)

    def close(self) -> None:
        """Nothing is open."""


class World:
    def __init__(
        self,
        choose: Callable[[Iterable[CommittedLedger]], Sequence[CommittedLedger]] | None = None,
    ) -> None:
        self.failures: list[StorageFailure] = []
        self.executor = SteppedExecutor()
        self.medium = Medium(self.executor.run)
        self.group_commit = GroupCommit(
            None,
            Durability.FSYNC,
            on_failure=self.failures.append,
            executor=self.executor,
            medium=self.medium,
            choose=choose,
        )
        self.lines = [Line(self.group_commit) for _ in range(3)]

    def append(self, *numbers: int) -> None:
        """Append to these in one turn of the event loop."""
        for number in numbers:
            self.lines[number].append()
        self.executor.run()

    def durable(self) -> list[int]:
        return [line.durable_end_offset for line in self.lines]


def test_the_next_sync_begins_once_there_is_room_and_all_end_in_order() -> None:
    world = World()
    medium = world.medium
    world.append(0)
    world.append(0, 1)
    assert medium.ends == [[1]]
    medium.make_room()
    assert medium.ends == [[1], [2, 1]]
    medium.make_room()
    world.append(2)
    assert medium.ends == [[1], [2, 1], [1]]
    medium.end()
    assert world.durable() == [1, 0, 0]
    medium.end()
    assert world.durable() == [2, 1, 0]
    world.append(0)
    assert medium.ends == [[1]], "the one under way has made no room"
    medium.end()
    assert (world.durable(), medium.ends) == ([2, 1, 1], [[3]])
    medium.end()
    assert world.group_commit.is_idle
    assert [line.told for line in world.lines] == [
        [(1, None), (2, None), (3, None)],
        [(1, None)],
        [(1, None)],
    ]


def test_what_clients_send_when_they_are_answered_rides_the_sync_that_was_asked_for() -> None:
    world = World()
    world.append(0)
    world.append(1)
    world.medium.end_in_this_turn()
    assert (world.lines[0].told, world.medium.ends) == ([(1, None)], [])
    world.append(2)
    assert world.medium.ends == [[1, 1]]


def test_nothing_is_idle_while_a_sync_that_made_room_is_under_way() -> None:
    world = World()
    world.append(0)
    world.medium.make_room()
    assert not world.group_commit.is_idle
    world.medium.end()
    assert world.group_commit.is_idle


def test_a_failure_fails_every_sync_under_way_and_begins_none() -> None:
    world = World()
    for number in (0, 1, 0):
        world.append(number)
        world.medium.make_room()
    make_room = world.medium.begun[-1][2]
    failure = StorageFailure("fenced")
    world.medium.end(failure)
    make_room()
    assert [line.told for line in world.lines] == [[(1, failure), (2, failure)], [(1, failure)], []]
    assert world.failures == [failure] and len(world.medium.begun) == 2


async def test_a_wait_for_everything_ends_with_a_sync_that_began_after_it() -> None:
    world = World()
    world.append(0)
    world.medium.make_room()
    settled = asyncio.ensure_future(world.group_commit.settle())
    await asyncio.sleep(0)
    world.executor.run()
    assert world.medium.ends == [[1], []]
    world.medium.end()
    await asyncio.sleep(0)
    assert not settled.done()
    world.medium.end()
    await settled


async def test_a_failure_ends_the_wait_for_everything() -> None:
    world = World()
    settled = asyncio.ensure_future(world.group_commit.settle())
    await asyncio.sleep(0)
    world.executor.run()
    world.medium.end(StorageFailure("fenced"))
    with pytest.raises(StorageFailure, match="fenced"):
        await settled


def test_ledgers_take_turns_and_none_is_left_out() -> None:
    world = World(lambda dirty: list(dirty)[:1])
    world.append(0, 1)
    world.append(0, 2)
    assert world.medium.ends == [[1]]
    world.medium.end()
    world.executor.run()
    assert world.medium.ends == [[1]] and world.durable() == [1, 0, 0]
    for _ in range(3):
        world.medium.end()
        world.executor.run()
    assert (world.durable(), world.medium.begun) == ([2, 1, 1], [])


async def test_a_wait_for_everything_lets_none_take_turns() -> None:
    world = World(lambda dirty: list(dirty)[:1])
    for line in world.lines:
        line.append()
    settled = asyncio.ensure_future(world.group_commit.settle())
    await asyncio.sleep(0)
    world.executor.run()
    assert world.medium.ends == [[1, 1, 1]]
    world.medium.end()
    await settled


def test_an_append_is_ordered_once_the_medium_says_so_and_durable_at_the_end() -> None:
    world = World()
    order = world.group_commit.begin_order()
    world.lines = [Line(world.group_commit) for _ in range(3)]
    told: list[list[Exception | None]] = [[], []]
    for number in (0, 1):
        world.append(number)
        assert world.lines[number].when_ordered(1, told[number].append)
        world.medium.make_room()
    assert not world.lines[0].is_ordered(1)
    order()
    assert told == [[None], []] and world.lines[0].is_ordered(1)
    assert not world.lines[0].when_ordered(1, lambda _: None)
    assert world.durable() == [0, 0, 0]
    world.medium.end()
    order()
    assert told == [[None], [None]] and world.durable() == [1, 0, 0]
    failure = StorageFailure("fenced")
    world.append(2)
    last: list[Exception | None] = []
    assert world.lines[2].when_ordered(1, last.append)
    world.medium.end(failure)
    assert last == [failure]


def test_without_an_order_an_append_is_ordered_when_it_is_durable() -> None:
    world = World()
    told: list[Exception | None] = []
    world.append(0)
    assert world.lines[0].when_ordered(1, told.append) and not world.lines[0].is_ordered(1)
    world.medium.end()
    assert told == [None] and world.lines[0].is_ordered(1)
