"""A partition is deleted while a read of it, or its cleaning, waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from logstore.directory.closed_logs import CLOSED_LOGS
from logstore.disk.descriptors import DiskFile
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation, PartitionDeleted
from logstore.segments.segment import Segment
from tests.logstore.directory.test_log_directory import TOPIC_ID, Opened, write

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)

T = TypeVar("T")


class Pause:
    """The first that reads waits here, in its thread."""

    def __init__(self) -> None:
        self.is_reading, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.is_reading.is_set():
            self.is_reading.set()
            assert self.go_on.wait(10)


def pause_reads_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> Pause:
    """The first read of that file waits."""
    pause, read = Pause(), DiskFile.read

    def paused(file: DiskFile, size: int, position: int) -> bytes:
        if file.path == str(path):
            pause()
        return read(file, size, position)

    monkeypatch.setattr(DiskFile, "read", paused)
    return pause


async def filled(opened: Opened) -> PartitionLog:
    """The topic's log, with several segments."""
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    for _ in range(12):
        await write(log, b"old" * 10)
    return log


async def test_a_read_is_not_answered_by_the_next_topic_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened)
    pause, read_index = Pause(), Segment._read_index

    def paused(segment: Segment, suffix: str) -> bytes:
        pause()
        return read_index(segment, suffix)

    monkeypatch.setattr(Segment, "_read_index", paused)
    reader = asyncio.ensure_future(log.reader.read_cold(1, 1000, Isolation.READ_UNCOMMITTED))
    await asyncio.to_thread(pause.is_reading.wait, 10)
    await opened.directory.delete([log])
    later = opened.directory.open("topic", 0, UUID(int=2), CONFIG)
    for _ in range(12):
        await write(later, b"n")
    pause.go_on.set()
    with pytest.raises(PartitionDeleted):
        await reader
    assert not opened.failures
    await opened.stop()


async def test_a_read_that_would_go_on_in_the_next_segment_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last batch that compaction has left of a segment there is nothing to be read."""
    opened = Opened(tmp_path)
    log = await filled(opened)
    last = log.ledger.segments.base_offsets[1] - 1
    path = tmp_path / "topic-0" / f"{0:020d}.log"
    batch_bytes = path.stat().st_size // (last + 1)
    await opened.stop()
    with path.open("r+b") as file:
        file.truncate(last * batch_bytes)
    (tmp_path / CLOSED_LOGS).unlink()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    pause = pause_reads_of(path, monkeypatch)
    reader = asyncio.ensure_future(log.reader.read_cold(last, 1000, Isolation.READ_UNCOMMITTED))
    await asyncio.to_thread(pause.is_reading.wait, 10)
    await opened.directory.delete([log])
    pause.go_on.set()
    with pytest.raises(PartitionDeleted):
        await reader
    assert not opened.failures
    await opened.stop()


@pytest.mark.parametrize("step", range(4))
async def test_a_segment_that_was_to_take_the_place_of_others_is_closed(
    tmp_path: Path, step: int
) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened)
    replacement = log.ledger.segments.replacement([0])
    assert replacement is not None
    for header, batch in log.ledger.batches.iterate(0):
        if header.base_offset < log.ledger.segments.base_offsets[1]:
            replacement.append(batch, header)
    replacement.seal(b"")
    steps = count()

    async def run(work: Callable[[], T]) -> T:
        if next(steps) == step:
            await opened.directory.delete([log])
        return work()

    assert not await replacement.swap(run, lambda: None)
    assert opened.files.descriptors.open_count == 1, "the journal alone"
    assert not opened.failures
    await opened.stop()
