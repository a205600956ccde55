"""Searches by time, while segments go or are put together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import PartitionDeleted
from logstore.segments.ledger import TimestampOffset
from logstore.segments.segment import Segment
from tests.logstore.cleaner.test_cleaning_beside_reads import in_thread
from tests.logstore.directory.test_deletion_beside_reads import Pause, pause_reads_of
from tests.logstore.directory.test_log_directory import NOW_MS, TOPIC_ID, Opened
from tests.logstore.partitions import batch_of, delete_records
from wire.records import BatchHeader

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
T = TypeVar("T")


async def filled(opened: Opened, *timestamps: int) -> PartitionLog:
    """A log with one record at each time, in several segments."""
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    for timestamp in timestamps:
        batch = batch_of(b"x" * 20, timestamp=timestamp)
        appended = log.append(log.check(batch, NOW_MS))
    await log.durable(appended.end_offset)
    return log


async def beside(search: Awaitable[T], pause: Pause, change: Callable[[], Awaitable[None]]) -> T:
    """Return what a search finds that waits in a thread during `change`."""
    searching = asyncio.ensure_future(search)
    assert await asyncio.to_thread(pause.is_reading.wait, 10)
    await change()
    pause.go_on.set()
    return await searching


async def put_together(
    log: PartitionLog, number: int, keeps: Callable[[BatchHeader], bool]
) -> None:
    """Make one segment of the first ones, as the cleaner does."""
    bases = log.ledger.segments.base_offsets
    replacement = log.ledger.segments.replacement(bases[:number])
    assert replacement is not None
    for header, batch in log.ledger.batches.iterate(0):
        if header.base_offset < bases[number] and keeps(header):
            replacement.append(batch, header)
    replacement.seal(b"")
    assert await replacement.swap(in_thread, lambda: log.on_replaced(0, bases[number], []))


@pytest.mark.parametrize("is_told_late", [False, True])
async def test_the_latest_record_is_one_that_is_there_when_retention_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told_late: bool
) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened, 9_000, *range(1_000, 1_020))
    if is_told_late:
        pause, read_max_timestamp = Pause(), Segment.read_max_timestamp
        await opened.stop()
        opened = Opened(tmp_path)
        log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)

        def paused(segment: Segment, file: DiskFile) -> tuple[int, int]:
            if segment.base_offset == log.ledger.segments.base_offsets[-2]:
                pause()
            return read_max_timestamp(segment, file)

        monkeypatch.setattr(Segment, "read_max_timestamp", paused)
    else:
        pause = pause_reads_of(tmp_path / "topic-0" / f"{0:020d}.log", monkeypatch)

    async def trim() -> None:
        delete_records(log, log.ledger.segments.base_offsets[2])

    found = await beside(log.reader.max_timestamp_offset(), pause, trim)
    assert found == TimestampOffset(20, 1_019, 0)
    await opened.stop()


async def test_the_latest_record_is_one_that_is_there_when_the_cleaner_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened, 9_000, *range(1_000, 1_020))
    pause = pause_reads_of(tmp_path / "topic-0" / f"{0:020d}.log", monkeypatch)
    found = await beside(
        log.reader.max_timestamp_offset(),
        pause,
        lambda: put_together(log, 1, lambda header: header.base_offset > 0),
    )
    assert found == TimestampOffset(20, 1_019, 0)
    await opened.stop()


async def test_a_search_passes_over_no_segment_that_the_cleaner_has_put_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record of the time is deleted, so the search goes on behind its segment."""
    opened = Opened(tmp_path)
    log = await filled(opened, 5_000, *[1_000] * 4, *range(5_000, 5_020))
    bases = log.ledger.segments.base_offsets
    assert bases[1] < 5 < bases[2]
    delete_records(log, 1)
    pause = pause_reads_of(tmp_path / "topic-0" / f"{0:020d}.log", monkeypatch)
    found = await beside(
        log.reader.offset_for_timestamp(5_000),
        pause,
        lambda: put_together(log, 3, lambda _: True),
    )
    assert found == TimestampOffset(5, 5_000, 0)
    await opened.stop()


@pytest.mark.parametrize("search", ["offset", "latest"])
async def test_a_search_in_a_partition_that_is_deleted_opens_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    opened = Opened(tmp_path)
    await filled(opened, *range(1_000, 1_020))
    await opened.stop()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    pause, read_max_timestamp = Pause(), Segment.read_max_timestamp

    def paused(segment: Segment, file: DiskFile) -> tuple[int, int]:
        pause()
        return read_max_timestamp(segment, file)

    monkeypatch.setattr(Segment, "read_max_timestamp", paused)
    reader = log.reader
    searching = reader.offset_for_timestamp(1_001)
    if search == "latest":
        searching.close()
        searching = reader.max_timestamp_offset()
    with pytest.raises(PartitionDeleted):
        await beside(searching, pause, lambda: opened.directory.delete([log]))
    assert not opened.failures
    await opened.stop()
