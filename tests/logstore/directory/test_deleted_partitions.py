"""Deleted partitions: a report about one never names another, however the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from threading import Thread
from uuid import UUID

import pytest

from logstore.directory.log_offsets import LogOffsets
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from tests.logstore.directory.test_log_directory import TOPIC_ID, Opened, write
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of, delete_records
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk

LATER_ID = UUID(int=2)
CONFIG = LogConfig(segment_bytes=130, file_delete_delay_ms=0)


class Process(LogProcess):
    """One partition on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.begin(disk, CONFIG)

    def write(self, topic_id: UUID, count: int) -> PartitionLog:
        log = self.directory.open("topic", 0, topic_id)
        for _ in range(count):
            log.append(log.check(batch_of(b"x" * 50), NOW_MS))
            self.executor.run()
        return log

    def delete(self, log: PartitionLog) -> None:
        asyncio.run(self.directory.delete([log]))


def deleted(first: int = 4) -> Process:
    """A process that has deleted a partition which began at `first`, as checkpoints tell still."""
    process = Process(SimulatedDisk())
    log = process.write(TOPIC_ID, first + 2)
    process.persist_start(log, first)
    delete_records(log, first)
    process.timers.run()
    process.delete(log)
    return process


async def test_the_files_of_logs_that_are_deleted_together_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer for each of 9,000 was a step when they began to wait, and another when all ended."""
    opened = Opened(tmp_path)
    delays_ms = [0, 0, 60_000, 0]
    configs = [LogConfig(file_delete_delay_ms=each) for each in delays_ms]
    logs = [
        opened.directory.open("topic", index, TOPIC_ID, config)
        for index, config in enumerate(configs)
    ]
    for log in logs:
        await write(log)
    discards, asked = opened.directory._discards, list[tuple[int, int]]()
    directories_later = discards.directories_later

    def noted(delay_ms: int, paths: Sequence[str]) -> None:
        asked.append((delay_ms, len(paths)))
        directories_later(delay_ms, paths)

    monkeypatch.setattr(discards, "directories_later", noted)
    await opened.directory.delete(logs)
    assert asked == [(0, 3), (60_000, 1)]
    async with asyncio.timeout(10):
        while len(left := [path.name for path in tmp_path.glob("topic-*")]) > 1:
            await asyncio.sleep(0.01)
    assert left[0].startswith("topic-2.")
    await opened.stop()


@pytest.mark.parametrize("is_told", [True, False], ids=["all known", "none known"])
def test_a_log_made_after_the_process_was_killed_begins_at_zero(is_told: bool) -> None:
    again = Process(deleted().disk.kill(Random(1)))
    if is_told:
        again.directory.sweep()
    log = again.write(LATER_ID, 2)
    assert (log.log_start_offset, log.high_watermark) == (0, 2)
    for disk in (again.disk.kill(Random(2)), again.disk.crash(Random(3))):
        log = Process(disk).directory.open("topic", 0, LATER_ID)
        assert (log.log_start_offset, log.high_watermark) == (0, 2)


def test_a_log_whose_topic_was_gone_before_the_process_ended_is_no_loss() -> None:
    disk = deleted().disk.kill(Random(1))
    again = Process(disk)
    damages: list[object] = []
    again.begin(disk.kill(Random(2)), CONFIG, on_damage=damages.append)
    again.directory.sweep()
    again.write(LATER_ID, 1)
    assert damages == []


def test_power_lost_while_a_deleted_name_is_used_again_takes_nothing_of_it() -> None:
    point, is_lost = 0, True
    while is_lost:
        again = Process(deleted().disk.kill(Random(1)))
        again.disk.lose_power_after(point)
        written = 0
        try:
            again.directory.sweep()
            for written in range(1, 4):
                if written == 1:
                    log = again.write(LATER_ID, 1)
                else:
                    log.append(log.check(batch_of(b"new"), NOW_MS))
                    again.executor.run()
            is_lost = False
        except PowerLost:
            written -= 1
        log = Process(again.disk.crash(Random(point))).directory.open("topic", 0, LATER_ID)
        assert log.log_start_offset == 0
        assert log.high_watermark >= written
        point += 1
    assert point > 5


def test_a_log_whose_directory_somebody_took_away_leaves_nothing_to_the_next_one() -> None:
    process = Process(SimulatedDisk())
    log = process.write(TOPIC_ID, 4)
    process.persist_start(log, 3)
    process.stop()
    for name in process.disk.list("/data/topic-0"):
        process.disk.unlink(f"/data/topic-0/{name}")
    process.disk.remove_directory("/data/topic-0")
    process = Process(process.disk)
    process.delete(process.directory.open("topic", 0, TOPIC_ID))
    process.write(LATER_ID, 2)
    log = Process(process.disk.kill(Random(1))).directory.open("topic", 0, LATER_ID)
    assert (log.log_start_offset, log.high_watermark) == (0, 2)


def test_a_name_is_not_free_before_who_is_settling_it_has_done_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread settles what has left; meanwhile the event loop wants one of the names."""
    process = deleted()
    deleted_partitions = process.directory._deleted
    write_checkpoint = LogOffsets.write
    waiting: list[tuple[Thread, bool]] = []

    def wanted_meanwhile(offsets: LogOffsets, name: str, *, sync: bool) -> None:
        if not waiting:
            thread = Thread(target=deleted_partitions.free, args=(("topic", 0),))
            thread.start()
            thread.join(timeout=0.1)
            waiting.append((thread, thread.is_alive()))
        write_checkpoint(offsets, name, sync=sync)

    monkeypatch.setattr(LogOffsets, "write", wanted_meanwhile)
    deleted_partitions.settle()
    ((thread, had_to_wait),) = waiting
    thread.join()
    assert had_to_wait


@pytest.mark.parametrize("topic", ["x" * 249, "y" * 214, "z" * 213])
async def test_a_topic_of_the_longest_name_can_be_deleted(tmp_path: Path, topic: str) -> None:
    """With what is added to its directory's name that is too long for a file system."""
    opened = Opened(tmp_path)
    logs = [opened.directory.open(topic, partition, TOPIC_ID) for partition in (0, 9_999)]
    for log in logs:
        await write(log)
    await opened.directory.delete(logs)
    stems = [path.name.partition(".")[0] for path in tmp_path.glob("*-delete")]
    assert {stem.rpartition("-")[2] for stem in stems} == {"0", "9999"}
    log = opened.directory.open(topic, 0, LATER_ID)
    assert await write(log) == 0
    await opened.stop()
    opened = Opened(tmp_path)
    assert opened.directory.open(topic, 0, TOPIC_ID).log_end_offset == 0
    assert len(list(tmp_path.glob("*-stray"))) == 1
    await opened.stop()


async def test_what_somebody_has_put_into_a_directory_goes_with_it(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    await write(log)
    (tmp_path / "topic-0" / "notes" / "old").mkdir(parents=True)
    (tmp_path / "topic-0" / "notes" / "old" / "a").touch()
    (tmp_path / "topic-0" / "elsewhere").symlink_to(tmp_path.parent)
    await opened.directory.delete([log])
    async with asyncio.timeout(10):
        while list(tmp_path.glob("topic-0*")):
            assert not opened.failures
            await asyncio.sleep(0.01)
    await opened.stop()
