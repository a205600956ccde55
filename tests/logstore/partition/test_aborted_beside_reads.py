"""Reads of aborted data: what is deleted while one waits, and how much one tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from logstore.disk import descriptors
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation, Slice
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments import segment_reads
from logstore.segments.segment import Segment
from tests.logstore.cleaner.test_cleaning_beside_reads import in_thread
from tests.logstore.directory.test_deletion_beside_reads import Pause
from tests.logstore.directory.test_log_directory import NOW_MS, TOPIC_ID, Opened, write
from tests.logstore.partitions import delete_records
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import whole_batches

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
ABORTED = b"aborted"


async def filled(opened: Opened) -> PartitionLog:
    """An aborted transaction in the first of several segments."""
    log = opened.directory.open("topic", 0, TOPIC_ID, CONFIG)
    await write(log, ABORTED, producer_id=1, epoch=0, sequence=0, transactional=True)
    marker = log.append_marker(TransactionMarker(1, 0, 0, commit=False), NOW_MS)
    await log.durable(marker.end_offset)
    for _ in range(12):
        await write(log, b"good")
    return log


async def read_beside(
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[PartitionLog], Awaitable[None]],
) -> Slice:
    """Return what a read_committed fetch from the start is given that waits during `change`."""
    pause, read_index = Pause(), Segment._read_index

    def paused(segment: Segment, suffix: str) -> bytes:
        pause()
        return read_index(segment, suffix)

    monkeypatch.setattr(Segment, "_read_index", paused)
    reader = asyncio.ensure_future(log.reader.read_cold(0, 1 << 20, Isolation.READ_COMMITTED))
    await asyncio.to_thread(pause.is_reading.wait, 10)
    await change(log)
    pause.go_on.set()
    return await reader


async def clean(log: PartitionLog) -> None:
    """Leave nothing of the transaction, as the cleaner does in time."""
    end_offset = log.ledger.segments.base_offsets[1]
    replacement = log.ledger.segments.replacement([0])
    assert replacement is not None
    for header, batch in log.ledger.batches.iterate(2):
        if header.base_offset < end_offset:
            replacement.append(batch, header)
    replacement.seal(b"")
    assert await replacement.swap(in_thread, lambda: log.on_replaced(0, end_offset, []))


async def delete_all(log: PartitionLog) -> None:
    delete_records(log, -1)


async def nothing(log: PartitionLog) -> None:
    """What is read meanwhile stays as it is."""


async def test_what_is_aborted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(tmp_path)
    found = await read_beside(await filled(opened), monkeypatch, nothing)
    assert ABORTED in bytes(found.records) and found.aborted == [(1, 0)]
    await opened.stop()


async def test_what_the_cleaner_has_taken_away_is_not_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    found = await read_beside(await filled(opened), monkeypatch, clean)
    assert b"good" in bytes(found.records) and ABORTED not in bytes(found.records)
    assert found.aborted == []
    await opened.stop()


async def test_what_is_deleted_is_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened)
    with pytest.raises(KafkaError) as refusal:
        await read_beside(log, monkeypatch, delete_all)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    await opened.stop()


@pytest.mark.parametrize("damage", [bytes(60), b"\xa7" * 60, b"\xff\xff\xff\xf4"])
async def test_behind_a_damaged_batch_nothing_is_read(tmp_path: Path, damage: bytes) -> None:
    opened = Opened(tmp_path)
    log = await filled(opened)
    whole = await log.reader.read_cold(0, 1 << 20, Isolation.READ_COMMITTED)
    position, _ = whole_batches(whole.records[:-1])
    with Path(tmp_path, "topic-0", f"{0:020d}.log").open("r+b") as file:
        file.seek(position if len(damage) > 4 else position + 8)
        file.write(damage)
    found = await log.reader.read_cold(0, 1 << 20, Isolation.READ_COMMITTED)
    assert found.records == whole.records[:position] and found.aborted == [(1, 0)]
    _, end_offset = whole_batches(found.records)
    with pytest.raises(KafkaError) as refusal:
        await log.reader.read_cold(end_offset, 1 << 20, Isolation.READ_COMMITTED)
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    await opened.stop()


async def test_a_read_tells_of_few_aborted_transactions_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logstore.partition.reader._ABORTED_MAX", 2)
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, LogConfig())
    for producer_id in range(1, 6):
        await write(log, ABORTED, producer_id=producer_id, epoch=0, sequence=0, transactional=True)
        marker = log.append_marker(TransactionMarker(producer_id, 0, 0, commit=False), NOW_MS)
        await write(log, b"good")
    await log.durable(marker.end_offset)
    told, whole, offset = [], b"", 0
    while offset < log.log_end_offset:
        found = await log.reader.read_cold(offset, 1 << 20, Isolation.READ_COMMITTED)
        _, offset = whole_batches(found.records)
        assert found.aborted is not None
        told.append([producer_id for producer_id, _ in found.aborted])
        whole += found.records
    assert told == [[1, 2], [3, 4], [5]]
    uncommitted = await log.reader.read_cold(0, 1 << 20, Isolation.READ_UNCOMMITTED)
    assert whole == uncommitted.records
    await opened.stop()


async def test_many_bytes_stay_in_their_file_unless_aborted_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (descriptors, segment_reads):
        monkeypatch.setattr(module, "RANGE_BYTES_MIN", 1)
    opened = Opened(tmp_path)
    reader = (await filled(opened)).reader
    await reader.read_cold(0, 1, Isolation.READ_UNCOMMITTED)  # So that indexes are in memory.
    read = reader.read(0, 1 << 20, Isolation.READ_UNCOMMITTED)
    left = reader.read(0, 1 << 20, Isolation.READ_UNCOMMITTED, in_file=True)
    assert read is not None and left is not None and left.in_file is not None
    assert bytes(left.in_file) == read.records and not left.records
    committed = reader.read(0, 1 << 20, Isolation.READ_COMMITTED, in_file=True)
    assert committed is not None and committed.in_file is None
    assert committed.aborted == [(1, 0)] and ABORTED in bytes(committed.records)
    # Behind the aborted ones there is nothing to tell.
    end = reader.read(reader.high_watermark - 1, 1 << 20, Isolation.READ_COMMITTED, in_file=True)
    assert end is not None and end.in_file is not None and end.aborted == []
    await opened.stop()
