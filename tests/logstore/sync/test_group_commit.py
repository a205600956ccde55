"""Group commit: what a sync covers, in which order it is told, and what a failure means."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, File, FileSystem, StorageFailure
from logstore.sync.group_commit import CommittedLedger, GroupCommit, Sync
from tests.logstore.counted_disk import Counted
from tests.logstore.ledgers import durable
from tests.logstore.simulated_disk import SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor


class Journal(CommittedLedger):
    """The smallest thing that can be synced: one file, appended to; offsets are bytes."""

    def __init__(self, group_commit: GroupCommit, file: File) -> None:
        super().__init__(group_commit)
        self._group_commit = group_commit
        self.file = file
        self.directories: list[str] = []
        self.failure: StorageFailure | None = None

    def append(self, data: bytes, *, may_wait: bool = False) -> None:
        self.file.write([data], self.end_offset)
        self.end_offset += len(data)
        self._group_commit.touch(self, may_wait=may_wait)

    def begin_sync(self) -> Sync:
        if self.failure is not None:
            raise self.failure
        self._begun_end_offset = self.end_offset
        sync = Sync(self.end_offset, [self.file])
        sync.directories = self.directories
        return sync


def commit(
    disk: FileSystem | None,
    failures: list[StorageFailure] | None = None,
    durability: Durability = Durability.FSYNC,
) -> tuple[GroupCommit, SteppedExecutor]:
    executor = SteppedExecutor()
    on_failure = (failures if failures is not None else []).append
    return GroupCommit(disk, durability, on_failure=on_failure, executor=executor), executor


def journals(disk: FileSystem, group_commit: GroupCommit, count: int) -> list[Journal]:
    return [Journal(group_commit, disk.open(f"/{i}", create=True)) for i in range(count)]


def test_all_that_a_turn_wrote_rides_together() -> None:
    disk = Counted()
    group_commit, executor = commit(disk)
    a, b, c = journals(disk, group_commit, 3)
    for journal in (a, b, c, a):
        journal.append(b"xx")
    executor.run()
    assert [j.durable_end_offset for j in (a, b, c)] == [4, 2, 2]
    assert disk.syncs == ["sync_all"]
    assert group_commit.is_idle


def test_what_is_written_during_a_sync_rides_the_next() -> None:
    disk = Counted()
    group_commit, executor = commit(disk)
    (a,) = journals(disk, group_commit, 1)
    a.append(b"xx")
    executor.step()  # begins
    a.append(b"yy")
    executor.step()  # syncs
    executor.step()  # completes, and begins the next
    assert a.durable_end_offset == 2
    assert not group_commit.is_idle
    executor.run()
    assert a.durable_end_offset == 4
    assert disk.syncs == ["sync", "sync"]


def test_one_file_is_synced_alone_many_with_the_file_system() -> None:
    disk = Counted()
    group_commit, executor = commit(disk)
    a, b = journals(disk, group_commit, 2)
    a.append(b"x")
    executor.run()
    a.append(b"x")
    b.append(b"x")
    executor.run()
    assert disk.syncs == ["sync", "sync_all"]


def test_without_syncfs_each_file_is_synced() -> None:
    disk = Counted(can_sync_all=False)
    group_commit, executor = commit(disk)
    for journal in journals(disk, group_commit, 5):
        journal.append(b"x")
    executor.run()
    assert disk.syncs == ["sync"] * 5


def test_every_end_moves_before_any_hook_and_every_hook_before_any_waiter() -> None:
    disk = SimulatedDisk()
    group_commit, executor = commit(disk)
    a, b = journals(disk, group_commit, 2)
    heard: list[tuple[str, int, int]] = []

    def hear(name: str) -> None:
        heard.append((name, a.durable_end_offset, b.durable_end_offset))

    a.on_durable = lambda _offset: hear("hook a")
    b.on_durable = lambda _offset: hear("hook b")

    async def wait(journal: Journal, name: str) -> None:
        await durable(journal, journal.end_offset)
        hear(name)

    async def story() -> None:
        a.append(b"x")
        b.append(b"xx")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait(a, "waiter a"))
            tasks.create_task(wait(b, "waiter b"))
            await asyncio.sleep(0)
            executor.run()

    asyncio.run(story())
    assert heard == [(name, 1, 2) for name in ("hook a", "hook b", "waiter a", "waiter b")]


def test_a_waiter_for_more_keeps_waiting_and_one_that_left_harms_nobody() -> None:
    disk = SimulatedDisk()
    group_commit, executor = commit(disk)
    (a,) = journals(disk, group_commit, 1)

    async def story() -> None:
        a.append(b"x")
        waiters = [asyncio.create_task(durable(a, offset)) for offset in (1, 1, 2)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        await asyncio.sleep(0)
        executor.run()
        await asyncio.sleep(0)
        assert [waiter.done() for waiter in waiters] == [True, True, False]
        a.append(b"x")
        executor.run()
        await waiters[2]

    asyncio.run(story())


@pytest.mark.parametrize("durability", [Durability.PAGE_CACHE, Durability.MEMORY])
def test_weaker_durability_tells_the_same_story_without_a_sync(durability: Durability) -> None:
    disk = Counted()
    group_commit, executor = commit(disk, durability=durability)
    (a,) = journals(disk, group_commit, 1)
    a.append(b"x")
    assert a.durable_end_offset == 0, "never inside the append"
    executor.run()
    assert a.durable_end_offset == 1
    assert disk.syncs == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_failed_sync_is_final(count: int) -> None:
    disk = Counted()
    failures: list[StorageFailure] = []
    group_commit, executor = commit(disk, failures)
    first, *others = journals(disk, group_commit, count)
    disk.fail("sync", errno.EIO)
    disk.fail("sync_all", errno.EIO)

    async def story() -> None:
        for journal in (first, *others):
            journal.append(b"x")
        executor.step()
        first.append(b"y")  # rides a sync that will never be
        waiters = [asyncio.create_task(durable(first, offset)) for offset in (1, 2)]
        await asyncio.sleep(0)
        executor.run()
        for waiter in waiters:
            with pytest.raises(StorageFailure, match="Input/output error"):
                await waiter
        with pytest.raises(StorageFailure):
            await durable(first, 1)

    asyncio.run(story())
    assert len(failures) == 1
    assert len(disk.syncs) == 1, "never tried again"
    assert first.durable_end_offset == 0
    with pytest.raises(StorageFailure):
        first.append(b"z")


def test_a_directory_that_is_gone_meanwhile_needs_no_sync() -> None:
    disk = SimulatedDisk(can_sync_all=False)
    disk.make_directory("/topic-0")
    failures: list[StorageFailure] = []
    group_commit, executor = commit(disk, failures)
    (a,) = journals(disk, group_commit, 1)
    a.directories = ["/topic-0"]
    a.append(b"x")
    executor.step()
    disk.rename("/topic-0", "/topic-0.deleted")
    executor.run()
    assert a.durable_end_offset == 1
    assert not failures


def test_a_write_that_fails_at_the_beginning_of_a_sync_is_final() -> None:
    disk = Counted()
    failures: list[StorageFailure] = []
    group_commit, executor = commit(disk, failures)
    (a,) = journals(disk, group_commit, 1)
    a.append(b"x")
    a.failure = StorageFailure("no space for the index")
    executor.run()
    assert failures == [a.failure]
    assert disk.syncs == []


async def test_the_thread_syncs_real_files(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    failures: list[StorageFailure] = []
    group_commit = GroupCommit(files, Durability.FSYNC, on_failure=failures.append)
    ledgers = [
        Journal(group_commit, files.open(str(tmp_path / str(i)), create=True)) for i in range(5)
    ]
    for i in range(20):
        for journal in ledgers[: 1 + i % 5]:
            journal.append(b"x" * 100)
        await asyncio.gather(*(durable(journal, journal.end_offset) for journal in ledgers))
    assert all(journal.durable_end_offset == journal.end_offset for journal in ledgers)
    group_commit.close()
    files.close()
    assert not failures


async def test_the_thread_reports_a_failure_on_the_event_loop() -> None:
    disk = SimulatedDisk()
    disk.fail("sync", errno.EIO)
    told: asyncio.Future[StorageFailure] = asyncio.get_running_loop().create_future()
    group_commit = GroupCommit(disk, Durability.FSYNC, on_failure=told.set_result)
    (a,) = journals(disk, group_commit, 1)
    a.append(b"x")
    with pytest.raises(StorageFailure):
        await durable(a, 1)
    assert isinstance(await told, StorageFailure)
    group_commit.close()


class Timed(SteppedExecutor):
    """Time passes when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)


def patient() -> tuple[GroupCommit, Timed, Counted]:
    disk, executor = Counted(), Timed()
    failures: list[StorageFailure] = []
    made = GroupCommit(disk, Durability.FSYNC, on_failure=failures.append, executor=executor)
    return made, executor, disk


async def test_what_may_wait_is_synced_when_somebody_asks_for_it() -> None:
    group_commit, executor, disk = patient()
    journal = Journal(group_commit, disk.open("journal", create=True))
    journal.append(b"one", may_wait=True)
    assert not executor.pending and not group_commit.is_idle
    waiting = asyncio.ensure_future(durable(journal, 3))
    await asyncio.sleep(0)
    executor.run()
    await waiting
    assert len(disk.syncs) == 1 and group_commit.is_idle


async def test_what_may_wait_rides_with_what_may_not() -> None:
    group_commit, executor, disk = patient()
    patient_one = Journal(group_commit, disk.open("one", create=True))
    urgent = Journal(group_commit, disk.open("two", create=True))
    patient_one.append(b"one", may_wait=True)
    urgent.append(b"two")
    executor.run()
    assert patient_one.durable_end_offset == urgent.durable_end_offset == 3


async def test_what_may_wait_does_not_wait_for_ever() -> None:
    group_commit, executor, disk = patient()
    journal = Journal(group_commit, disk.open("journal", create=True))
    journal.append(b"one", may_wait=True)
    journal.append(b"two", may_wait=True)
    (timer,) = executor.timers
    timer()
    executor.run()
    assert journal.durable_end_offset == 6 and len(disk.syncs) == 1
    timer()
    assert not executor.pending  # nothing is dirty


async def test_what_came_during_a_sync_and_may_wait_begins_no_other() -> None:
    group_commit, executor, disk = patient()
    journal = Journal(group_commit, disk.open("journal", create=True))
    journal.append(b"one")
    executor.step()  # it has begun
    journal.append(b"two", may_wait=True)
    waiting = asyncio.ensure_future(durable(journal, 3))
    await asyncio.sleep(0)
    executor.run()
    await waiting
    assert journal.durable_end_offset == 3 and len(executor.timers) == 1
    executor.timers.pop()()
    executor.run()
    assert journal.durable_end_offset == 6


async def test_who_waits_for_what_came_during_a_sync_has_the_next() -> None:
    group_commit, executor, disk = patient()
    journal = Journal(group_commit, disk.open("journal", create=True))
    journal.append(b"one")
    executor.step()
    journal.append(b"two", may_wait=True)
    waiting = asyncio.ensure_future(durable(journal, 6))
    await asyncio.sleep(0)
    executor.run()
    await waiting
    assert len(disk.syncs) == 2 and not executor.timers
