"""Many logs opened and closed together: one sync for all, and no order of writes that loses one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from uuid import UUID

import pytest

from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.state import PartitionState
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of, delete_records
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk

CONFIG = LogConfig(segment_bytes=300)
PARTITIONS = 3
LONG_AGO = 5


class Process(LogProcess):
    """Some partitions of a topic on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.begin(disk, CONFIG)

    def open(self, count: int = PARTITIONS) -> list[PartitionLog]:
        openings = [self.directory.opening("topic", index) for index in range(count)]
        return asyncio.run(self.directory.open_together(openings))

    def fill(self, logs: list[PartitionLog]) -> list[PartitionState]:
        """Write some segments, delete the first with the only batch of its producer; settled."""
        for log in logs:
            log.append(log.check(batch_of(b"x", producer_id=LONG_AGO, epoch=0, sequence=0), NOW_MS))
            for sequence in range(6 + log.partition):
                log.append(
                    log.check(
                        batch_of(b"y" * 60, producer_id=1, epoch=0, sequence=sequence), NOW_MS
                    )
                )
            self.executor.run()
            self.persist_start(log, 4)
            delete_records(log, 4)
        return [log.state for log in logs]

    def close(self) -> None:
        asyncio.run(self.directory.close())


def filled(can_sync_all: bool) -> tuple[Process, list[PartitionState]]:
    process = Process(SimulatedDisk(can_sync_all=can_sync_all))
    return process, process.fill(process.open())


def lost_at(point: int, disk: SimulatedDisk, work: Callable[[], object]) -> bool:
    """Do `work` on a disk that loses power after so many operations; whether it did."""
    disk.lose_power_after(point)
    try:
        work()
    except PowerLost:
        return True
    return False


@pytest.mark.parametrize("can_sync_all", [True, False])
def test_power_lost_while_logs_are_closed_together_loses_nothing(can_sync_all: bool) -> None:
    point, is_lost = 0, True
    while is_lost:
        process, states = filled(can_sync_all)
        is_lost = lost_at(point, process.disk, process.close)
        again = Process(process.disk.crash(Random(point)))
        assert again.directory.clean_stop.was_clean or is_lost
        logs = again.open()
        assert [log.state for log in logs] == states
        assert LONG_AGO in logs[0].producers
        point += 1
    assert point > 20


@pytest.mark.parametrize("can_sync_all", [True, False])
def test_power_lost_while_logs_are_opened_together_loses_nothing(can_sync_all: bool) -> None:
    point, is_lost = 0, True
    while is_lost:
        process, states = filled(can_sync_all)
        killed = Process(process.disk.kill(Random(point)))
        is_lost = lost_at(point, killed.disk, killed.open)
        logs = Process(killed.disk.crash(Random(point))).open()
        assert [log.state for log in logs] == states
        point += 1
    assert point > 20


def test_what_was_recovered_is_durable_before_anybody_sees_it() -> None:
    process, states = filled(can_sync_all=True)
    killed = Process(process.disk.kill(Random(1)))
    killed.open()
    logs = Process(killed.disk.crash(Random(2))).open()
    assert [log.state for log in logs] == states


def syncs(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many syncs a clean stop and a start after a kill take for so many partitions."""
    process = Process(SimulatedDisk())
    process.fill(process.open(count))
    killed = Process(process.disk.kill(Random(1)))
    done: list[str] = []
    before = killed.disk.before

    def counted(operation: str) -> None:
        if operation.startswith("sync"):
            done.append(operation)
        before(operation)

    monkeypatch.setattr(killed.disk, "before", counted)
    killed.open(count)
    for_start = len(done)
    for log in killed.directory._logs.values():
        log.append(log.check(batch_of(b"z"), NOW_MS))
    killed.executor.run()
    done.clear()
    killed.close()
    return for_start, len(done)


def test_forty_partitions_cost_as_many_syncs_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert syncs(40, monkeypatch) == syncs(1, monkeypatch)


def test_what_has_not_changed_is_not_written_again() -> None:
    process, _ = filled(can_sync_all=True)
    process.close()
    untouched = Process(process.disk.kill(Random(1)))
    untouched.open()
    assert untouched.directory.clean_stop.was_clean
    before = untouched.disk.operations
    untouched.close()
    of_partitions = untouched.disk.operations - before
    empty = Process(SimulatedDisk())
    before = empty.disk.operations
    empty.close()
    assert of_partitions <= empty.disk.operations - before + 3


@pytest.mark.parametrize("operation", ["write", "name", "sync_all"])
def test_a_failing_disk_leaves_no_mark_of_a_clean_stop(operation: str) -> None:
    process, states = filled(can_sync_all=True)
    process.disk.fail(operation, errno.EIO)
    with pytest.raises(StorageFailure, match="Input/output error"):
        process.close()
    again = Process(process.disk.crash(Random(3)))
    assert not again.directory.clean_stop.was_clean
    assert [log.state for log in again.open()] == states


def test_pages_lost_by_a_sync_under_way_leave_no_mark_of_a_clean_stop() -> None:
    """The kernel tells one of two syncs that pages are lost; the stop's own may be the other."""
    process, states = filled(can_sync_all=True)
    process.close()
    disk = process.disk.kill(Random(1))

    async def beside_a_sync(work: Callable[[], None]) -> None:
        work()
        process.executor.run()

    process.begin(disk, CONFIG, aside=beside_a_sync)
    for log in process.open():
        log.ledger.roll()
    disk.fail("sync_all", errno.EIO)
    while disk._failures["sync_all"]:
        assert process.executor.step()
    process.close()
    again = Process(disk.crash(Random(3)))
    assert not again.directory.clean_stop.was_clean
    assert [log.state for log in again.open()] == states


@pytest.mark.parametrize("can_sync_all", [True, False])
def test_power_lost_while_topics_are_deleted_and_made_anew_loses_nothing(
    can_sync_all: bool,
) -> None:
    """The next of a name must not begin where the former one did."""
    point, is_lost = 0, True
    while is_lost:
        process, _ = filled(can_sync_all)
        process.timers.run()
        logs = list(process.directory._logs.values())
        later = UUID(int=2)
        made: list[PartitionLog] = []

        def make_anew(
            process: Process = process,
            logs: list[PartitionLog] = logs,
            made: list[PartitionLog] = made,
            later: UUID = later,
        ) -> None:
            asyncio.run(process.directory.delete(logs))
            for index in range(PARTITIONS):
                log = process.directory.open("topic", index, later)
                log.append(log.check(batch_of(b"new"), NOW_MS))
                process.executor.run()
                assert log.high_watermark == 1
                made.append(log)

        is_lost = lost_at(point, process.disk, make_anew)
        again = Process(process.disk.crash(Random(point)))
        for index, before in enumerate(made):
            log = again.directory.open("topic", index, later)
            assert (log.log_start_offset, log.high_watermark) == (0, 1)
            assert log.state == before.state
        point += 1
    assert point > 10
