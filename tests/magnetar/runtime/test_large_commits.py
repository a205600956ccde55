"""Ends of transactions with more markers than one turn of the event loop may append."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coordinator.transactions.commit_plan import MARKERS_AT_ONCE_MAX, Storage
from coordinator.transactions.metadata import State, TopicPartition
from logstore.partition.client_batch import Appended
from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import Sync
from magnetar.runtime import participants
from magnetar.runtime.commit import SLICES_WAITING_MAX
from tests.magnetar.transaction_world import A0, World

COUNT = 6 * MARKERS_AT_ONCE_MAX + 50
BIG = [TopicPartition("big", index) for index in range(COUNT)]


@pytest.fixture(params=Storage)
async def world(request: pytest.FixtureRequest) -> World:
    world = World(storage=request.param)
    world.add_topic("big", COUNT)
    return world


class Turns:
    """What each turn of the event loop has done, counted by what it was."""

    def __init__(self) -> None:
        self.now = 0
        self.done: dict[str, Counter[int]] = {"append": Counter(), "complete": Counter()}

    async def tick(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count markers appended and logs told of a sync, by the turn of the event loop."""
    turns = Turns()
    append_marker = PartitionLog.append_marker

    def append(log: PartitionLog, marker: TransactionMarker, now_ms: int) -> Appended:
        turns.done["append"][turns.now] += 1
        return append_marker(log, marker, now_ms)

    def complete(ledger: MemoryLedger, sync: Sync) -> None:
        turns.done["complete"][turns.now] += 1

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "append_marker", append)
        patched.setattr(MemoryLedger, "complete_sync", complete)
        ticking = asyncio.create_task(turns.tick())
        yield turns
        ticking.cancel()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
async def test_no_turn_of_the_event_loop_appends_more_than_a_slice_of_markers(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool, version: int
) -> None:
    identity = await world.begin(*BIG)
    with counted(monkeypatch) as turns:
        await world.until(world.end("tx", identity, commit=commit, transaction_version=version))
    assert sum(turns.done["append"].values()) == COUNT
    assert max(turns.done["append"].values()) <= MARKERS_AT_ONCE_MAX
    if world.storage is not Storage.APART:
        # So many slices at most wait for one sync; and the coordinator's log.
        bound = SLICES_WAITING_MAX * MARKERS_AT_ONCE_MAX + 1
        assert max(turns.done["complete"].values()) <= bound
    assert all(world.stable(partition) for partition in BIG)
    assert world.state() is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


@pytest.mark.usefixtures("short_turns")
async def test_a_slice_of_markers_that_take_long_ends_with_the_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each marker makes files, or opens them again."""
    identity = await world.begin(*BIG)
    with counted(monkeypatch) as turns:
        await world.until(world.end("tx", identity, commit=True))
    assert sum(turns.done["append"].values()) == COUNT
    assert max(turns.done["append"].values()) <= 2
    assert world.state() is State.COMPLETE_COMMIT


@pytest.mark.usefixtures("short_turns")
async def test_partitions_that_are_gone_take_turns_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has a line in the log."""
    identity = await world.begin(*BIG)
    world.delete_topic("big")
    skipped = Counter[int]()
    with counted(monkeypatch) as turns:

        def skip(*_: object) -> None:
            skipped[turns.now] += 1

        monkeypatch.setattr(participants, "report_skipped", skip)
        await world.until(world.end("tx", identity, commit=True))
    assert skipped.total() == COUNT
    assert max(skipped.values()) <= 2
    assert world.state() is State.COMPLETE_COMMIT


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
async def test_few_markers_take_turns_where_each_makes_files(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool, version: int
) -> None:
    monkeypatch.setattr(MemoryLedger, "has_files", True)
    few = BIG[:40]
    for are_new in (True, False):
        identity = await world.init()
        await world.until(world.coordinator.holds.add_partitions("tx", identity, set(few)))
        with counted(monkeypatch) as turns:
            ending = world.end("tx", identity, commit=commit, transaction_version=version)
            await world.until(ending)
        most = max(turns.done["append"].values())
        if are_new:
            assert most <= 2
        else:
            assert most == len(few)
        assert sum(turns.done["append"].values()) == len(few)
        assert all(world.stable(partition) for partition in few)


@pytest.mark.parametrize("commit", [True, False])
async def test_the_children_of_a_parent_share_the_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    coordinator, names = world.coordinator, [f"p~>{number}" for number in range(5)]
    for number, name in enumerate(names):
        child = await world.init(name)
        held = set(BIG[number * 60 : (number + 1) * 60])
        await world.until(coordinator.holds.add_partitions(name, child, held))
        await world.until(world.end(name, child, commit=True))
    parent = await world.init("p")
    await world.until(coordinator.holds.add_partitions("p", parent, {A0}))
    with counted(monkeypatch) as turns:
        await world.until(world.end("p", parent, commit=commit))
    assert sum(turns.done["append"].values()) == 301
    assert max(turns.done["append"].values()) <= MARKERS_AT_ONCE_MAX
    ended = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
    assert {world.state(name) for name in (*names, "p")} == {ended}
    outcome = "COMMIT" if commit else "ABORT"
    assert {kind for one in BIG[:300] for kind, _ in world.markers(one)} == {outcome}


async def test_other_producers_end_their_transactions_between_the_slices(world: World) -> None:
    world.add_topic("bigger", 3 * COUNT)
    identity = await world.begin(*(TopicPartition("bigger", index) for index in range(3 * COUNT)))
    other = await world.init("other")
    large = asyncio.ensure_future(world.end("tx", identity, commit=True))
    while not world.markers(TopicPartition("bigger", 0)):
        world.step()
        await asyncio.sleep(0)
    await world.answered(world.coordinator.holds.add_partitions("other", other, {A0}))
    await world.answered(world.end("other", other, commit=False))
    assert not large.done()
    assert world.markers(A0) == [("ABORT", 0)]
    await world.until(large)


async def test_no_reader_sees_a_marker_before_the_decision_is_durable(world: World) -> None:
    identity = await world.begin(*BIG)
    large = asyncio.ensure_future(world.end("tx", identity, commit=True))
    shard = world.coordinator.store.shard_of("tx").log
    await asyncio.sleep(0)
    decided = shard.log_end_offset
    while not large.done():
        if shard.high_watermark < decided:
            assert not any(world.markers(partition) for partition in BIG)
        seen = [world.reads(partition, Isolation.READ_COMMITTED) for partition in BIG]
        # Slice by slice in the order of the partitions, and nothing before the decision.
        assert seen == sorted(seen, reverse=True)
        assert not any(seen) or shard.high_watermark >= decided
        world.step()
        await asyncio.sleep(0)
    assert all(world.reads(partition, Isolation.READ_COMMITTED) for partition in BIG)


@pytest.mark.parametrize("rounds", range(0, 24, 2))
async def test_a_crash_between_the_slices_leaves_no_partition_behind(
    world: World, rounds: int
) -> None:
    identity = await world.begin(*BIG)
    large = asyncio.ensure_future(world.end("tx", identity, commit=True))
    for _ in range(rounds):
        world.step()
        await asyncio.sleep(0)
    await world.restart()
    large.cancel()
    outcomes = {tuple(world.markers(partition)) for partition in BIG}
    if world.state() is State.ONGOING:
        assert outcomes == {()}
    else:
        # The marker is there once in each: a drive again leaves alone what is closed.
        assert outcomes == {(("COMMIT", 0),)}
        assert all(world.stable(partition) for partition in BIG)


async def test_the_disk_may_fail_between_the_slices(world: World) -> None:
    identity = await world.begin(*BIG)
    ledger = world.ledgers[BIG[-1]]
    ledger.appends_left = 0
    large = asyncio.ensure_future(world.end("tx", identity, commit=True))
    while not world.failures:
        world.step()
        await asyncio.sleep(0)
    large.cancel()
    await world.restart()
    assert world.state() is State.COMPLETE_COMMIT
    assert {tuple(world.markers(partition)) for partition in BIG} == {(("COMMIT", 0),)}
