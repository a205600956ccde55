"""What a trim leaves beside a log's segments goes beside the event loop, as the segments do."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.disk.files import DiskFiles, StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import PartitionGone
from logstore.partition.snapshots import snapshot_name
from tests.logstore.directory.test_log_directory import TOPIC_ID, Opened, write
from tests.logstore.loop_syncs import watch_syncs_on_loop

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)


async def filled(opened: Opened, config: LogConfig) -> PartitionLog:
    """A log of several segments, each with Kafka's snapshot beside it."""
    log = opened.directory.open("topic", 0, TOPIC_ID, config)
    for _ in range(24):
        await write(log, b"old" * 10)
    await log.secure_state()
    return log


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.snapshot*"))


@pytest.fixture
def syncs_on_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs that the event loop's thread has waited for."""
    return watch_syncs_on_loop(monkeypatch)


async def test_the_event_loop_waits_for_no_sync_of_the_state_that_the_cleaner_secures(
    tmp_path: Path, syncs_on_loop: list[str]
) -> None:
    """A state of 100,000 producers was encoded, written and synced in one step, of 200 ms."""
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    syncs_on_loop.clear()
    end_offset = log.log_end_offset
    await log.secure_state()
    assert syncs_on_loop == []
    assert (tmp_path / "topic-0" / snapshot_name(end_offset)).exists()
    await opened.stop()


async def test_the_event_loop_waits_for_no_sync_of_a_log_that_is_all_due(
    tmp_path: Path, syncs_on_loop: list[str]
) -> None:
    """Each such log took a step of four syncs: 5 to 37 ms on a busy disk."""
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    end_offset = log.log_end_offset
    await opened.directory.persist_start_offsets([(log, end_offset)])
    syncs_on_loop.clear()
    log.roll_at(end_offset)
    await log.until_told(end_offset)
    log.advance_start(end_offset)
    assert syncs_on_loop == []
    assert (log.log_start_offset, log.size_bytes) == (end_offset, 0)
    assert (tmp_path / "topic-0" / snapshot_name(end_offset)).exists()
    await opened.stop()


@pytest.mark.parametrize("failing", range(3))
async def test_who_waits_for_a_snapshot_hears_that_the_storage_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The cleaner waited for ever, and a stop with it."""
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    count = itertools.count()

    def fail(kind: type, name: str) -> None:
        work = getattr(kind, name)

        def failed(self: object, *rest: str) -> None:
            if next(count) == failing:
                raise OSError(errno.EIO, "a bad disk")
            work(self, *rest)

        monkeypatch.setattr(kind, name, failed)

    fail(DiskFile, "sync")
    fail(DiskFiles, "rename")
    fail(DiskFiles, "sync_directory")
    async with asyncio.timeout(10):
        for _ in range(2):
            with pytest.raises(StorageFailure):
                await log.secure_state()
    assert len(opened.failures) == 1
    opened.end()


async def test_who_waits_for_a_snapshot_hears_that_the_partition_is_gone(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    securing = asyncio.create_task(log.secure_state())
    await asyncio.sleep(0)
    assert not securing.done()
    await opened.directory.delete([log])
    with pytest.raises(PartitionGone):
        await securing
    await opened.stop()


async def test_a_partition_that_goes_before_the_wait_for_its_snapshot_is_gone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)

    async def durable(self: PartitionLog, _end_offset: int) -> None:
        # A step between the end of the sync and its waiter's turn.
        await opened.directory.delete([self])

    monkeypatch.setattr(PartitionLog, "durable", durable)
    with pytest.raises(PartitionGone):
        async with asyncio.timeout(5):
            await log.secure_state()
    await opened.stop()


async def test_the_event_loop_unlinks_nothing_of_what_a_trim_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unlink may take a millisecond, and a log may have ten thousand segments."""
    opened = Opened(tmp_path)
    log = await filled(opened, CONFIG)
    bases, directory = log.ledger.segments.base_offsets, tmp_path / "topic-0"
    assert len(snapshots(directory)) >= 5
    on_loop: list[str] = []
    unlink = DiskFiles.unlink

    def watched(self: DiskFiles, path: str) -> None:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(path)
        unlink(self, path)

    monkeypatch.setattr(DiskFiles, "unlink", watched)
    log.advance_start(bases[-2])
    assert on_loop == []
    async with asyncio.timeout(10):
        while any(directory.glob("*.deleted")):
            await asyncio.sleep(0.001)
    kept = {f"{base:020d}.snapshot" for base in bases[-2:]}
    assert {*snapshots(directory)} == kept
    assert not opened.failures
    await opened.stop()


async def test_a_start_deletes_what_an_earlier_process_had_only_put_aside(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    config = replace(CONFIG, file_delete_delay_ms=60_000)
    log = await filled(opened, config)
    bases = log.ledger.segments.base_offsets
    log.advance_start(bases[-2])
    directory = tmp_path / "topic-0"
    assert f"{bases[1]:020d}.snapshot.deleted" in snapshots(directory)
    await opened.stop()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, config)
    assert log.log_end_offset == 24
    assert not [name for name in snapshots(directory) if name.endswith(".deleted")]
    await opened.stop()
