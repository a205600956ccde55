"""Reads of `FileLedger` that meet a trim, a roll, a damaged disk or cold pages."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from logstore.disk.descriptors import Descriptors, DiskFile
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, File, FileSystem, StorageFailure
from logstore.partition.log_config import LogConfig
from logstore.segments import searching
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import TimestampOffset, Unreadable
from logstore.segments.timestamps import first_record_since
from logstore.sync.group_commit import GroupCommit
from tests.logstore import ledgers
from tests.logstore.ledgers import close_cleanly, open_now
from tests.logstore.simulated_disk import SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader, Buffer, SimpleRecord, encode_records, packed_batch
from wire.records.header import NO_TIMESTAMP

LIMITS = LogConfig(segment_bytes=1000, index_interval_bytes=150)
ALL = 2**62


def filled(files: FileSystem, directory: str) -> tuple[FileLedger, list[bytes]]:
    return ledgers.filled(files, directory, LIMITS, [50] * 40)


def reopened(disk: FileSystem, directory: str = "/data/t-0") -> FileLedger:
    group_commit = GroupCommit(
        disk, Durability.FSYNC, on_failure=lambda _: None, executor=SteppedExecutor()
    )
    ledger = FileLedger(disk, directory, group_commit, LIMITS, recovery_point=40, clean=True)
    open_now(ledger)
    return ledger


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    disk = DiskFiles(str(tmp_path))
    yield disk
    disk.close()


async def test_a_trim_takes_nothing_from_a_reader(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, batches = filled(files, str(tmp_path / "t-0"))
    reading, trimmed = threading.Event(), threading.Event()
    read = DiskFile.read

    def slow(file: DiskFile, size: int, position: int) -> bytes:
        if file.path.endswith(f"{0:020d}.log"):
            reading.set()
            assert trimmed.wait(10)
        return read(file, size, position)

    monkeypatch.setattr(DiskFile, "read", slow)
    reader = asyncio.create_task(ledger.batches.read_cold(0, 1, ALL))
    await asyncio.to_thread(reading.wait, 10)
    ledger.trim(30)
    assert not files.exists(str(tmp_path / "t-0" / f"{0:020d}.log"))
    trimmed.set()
    assert bytes(await reader) == batches[0]
    assert bytes(await ledger.batches.read_cold(30, 1, ALL)) == batches[30]
    close_cleanly(ledger)


async def test_cold_pages_are_read_in_a_thread() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    disk.is_cold = True
    for offset in range(40):
        assert ledger.batches.read(offset, 200, ALL) is None
        found = bytes(await ledger.batches.read_cold(offset, 200, ALL))
        assert found and b"".join(batches[offset:]).startswith(found)
    assert bytes(await ledger.batches.read_cold(40, 200, ALL)) == b""


async def test_a_sector_that_cannot_be_read_fails_its_readers_alone() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    disk.fail("read", errno.EIO)
    with pytest.raises(Unreadable, match="Input/output"):
        await ledger.batches.read_cold(0, 200, ALL)
    disk.fail("read", errno.EIO)
    with pytest.raises(Unreadable, match="Input/output"):
        ledger.batches.read(39, 200, ALL)
    assert bytes(ledger.batches.read(39, 200, ALL) or b"") == batches[39]


async def test_a_read_that_fails_in_another_way_is_final() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, _ = filled(disk, "/data/t-0")
    disk.fail("read", errno.EBADF)
    with pytest.raises(StorageFailure, match="Bad file"):
        await ledger.batches.read_cold(0, 200, ALL)
    disk.fail("read", errno.EIO)
    with pytest.raises(StorageFailure, match="Input/output"):
        ledger.batches.read(39, 200, ALL)


async def test_bytes_that_rotted_are_the_partitions_trouble_alone() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    disk.open(f"/data/t-0/{0:020d}.log").write([bytes(60)], 0)
    with pytest.raises(KafkaError) as refusal:
        await ledger.batches.read_cold(1, 200, ALL)
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert bytes(await ledger.batches.read_cold(39, 200, ALL)) == batches[39]


@pytest.mark.parametrize("cut", [1, 100])
async def test_half_a_batch_is_refused_and_not_handed_out_for_ever(cut: int) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    last = ledger.segments.base_offsets[1] - 1
    close_cleanly(ledger)
    file = disk.open(f"/data/t-0/{0:020d}.log")
    file.truncate(file.size() - cut)
    again = reopened(disk)
    for max_bytes in (1, 10**6):
        with pytest.raises(KafkaError) as refusal:
            await again.batches.read_cold(last, max_bytes, ALL)
        assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert bytes(await again.batches.read_cold(last - 1, 1, ALL)) == batches[last - 1]
    assert bytes(await again.batches.read_cold(last + 1, 1, ALL)) == batches[last + 1]


async def test_a_batch_that_claims_more_than_the_file_has_is_refused() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    disk.open(f"/data/t-0/{0:020d}.log").write([b"\x10"], 8)
    with pytest.raises(KafkaError) as refusal:
        await ledger.batches.read_cold(0, 200, ALL)
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert bytes(await ledger.batches.read_cold(39, 200, ALL)) == batches[39]


@pytest.mark.parametrize("max_bytes", [1, 130, 1000, 10**6])
async def test_every_range_is_read_alike_whatever_is_in_memory(max_bytes: int) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, _ = filled(disk, "/data/t-0")
    close_cleanly(ledger)
    ledger, batches = filled(SimulatedDisk(), "/t-0")
    again = reopened(disk)
    for offset in range(40):
        for end_offset in (offset, offset + 1, offset + 3, ALL):
            expected = ledger.batches.read(offset, max_bytes, end_offset)
            if expected is None:
                expected = await ledger.batches.read_cold(offset, max_bytes, end_offset)
            assert await again.batches.read_cold(offset, max_bytes, end_offset) == expected
            assert bool(expected) == (end_offset > offset)
    assert len(batches) == again.end_offset


async def test_indexes_of_cold_segments_are_held_within_their_account() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    bases = ledger.segments.base_offsets
    assert len(bases) == 5
    await ledger.batches.read_cold(0, 1, ALL)
    account = ledger.segments._cold_indexes
    one = account.held_bytes
    assert one > 0
    account.limit_bytes = 2 * one
    for _ in range(2):
        for offset in range(40):
            found = bytes(await ledger.batches.read_cold(offset, 200, ALL))
            assert b"".join(batches[offset:]).startswith(found)
            assert account.held_bytes <= account.limit_bytes
    # What was read last is there, and what was read first is read again.
    assert ledger.batches.read(bases[-2], 1, ALL) is not None
    assert ledger.batches.read(bases[0], 1, ALL) is None
    ledger.segments.trim(bases[-1])
    assert account.held_bytes == 0


async def test_a_moment_is_looked_for_in_a_thread() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, _ = filled(disk, "/data/t-0")
    disk.is_cold = True
    for timestamp in (0, 1_000_000_000_000_000):
        await ledger.batches.offset_for_timestamp(timestamp, 0, ALL)
    found = await ledger.batches.max_timestamp(ALL)
    assert found is not None
    assert await ledger.batches.offset_for_timestamp(found.timestamp_ms, 0, ALL) is not None


#: What another program does to a file, from byte 300 on.
HURTS: dict[str, Callable[[File], None]] = {
    "cut": lambda file: file.truncate(300),
    "zeros": lambda file: file.write([bytes(file.size() - 300)], 300),
    "garbage": lambda file: file.write([b"\xa7" * (file.size() - 300)], 300),
    "batches of other offsets": lambda file: file.write([file.read(file.size(), 0)], 300),
}


@pytest.mark.parametrize("hurt", HURTS)
@pytest.mark.parametrize("is_active", [True, False])
async def test_what_another_program_did_to_a_file_is_not_served(hurt: str, is_active: bool) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    ledger, batches = filled(disk, "/data/t-0")
    base = ledger.segments.base_offsets[-1] if is_active else 0
    told: list[OSError] = []
    ledger.segments.on_unreadable = told.append
    HURTS[hurt](disk.open(f"/data/t-0/{base:020d}.log"))
    assert bytes(await ledger.batches.read_cold(base + 1, 1, ALL)) == batches[base + 1]
    for max_bytes in (1, 10**6):
        with pytest.raises(Unreadable) as refusal:
            await ledger.batches.read_cold(base + 3, max_bytes, ALL)
        assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
        with pytest.raises(Unreadable):
            found = ledger.batches.read(base + 3, max_bytes, ALL)
            # The index of a segment that is not the active one is not in memory at first.
            assert found is None and not is_active
            await ledger.batches.read_cold(base + 3, max_bytes, ALL)
    assert len(told) == 4
    other = 0 if is_active else 39
    assert bytes(await ledger.batches.read_cold(other, 1, ALL)) == batches[other]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES, errno.ESTALE])
async def test_a_segment_that_cannot_be_opened_fails_its_readers_alone(
    error: int, files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, batches = filled(files, str(tmp_path / "t-0"))
    close_cleanly(ledger)
    again = reopened(files, str(tmp_path / "t-0"))
    path = tmp_path / "t-0" / f"{0:020d}.log"
    opened = Descriptors.open

    def refused(descriptors: Descriptors, name: str, *, create: bool) -> DiskFile:
        if name == str(path):
            raise OSError(error, os.strerror(error), name)
        return opened(descriptors, name, create=create)

    monkeypatch.setattr(Descriptors, "open", refused)
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: again.batches.read_cold(0, 1, ALL),
        lambda: again.batches.offset_for_timestamp(0, 0, ALL),
    ]
    for read in reads:
        with pytest.raises(Unreadable) as refusal:
            await read()
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bytes(await again.batches.read_cold(39, 1, ALL)) == batches[39]
    close_cleanly(again)


async def test_a_segment_that_is_gone_has_no_timestamp_for_retention_alone(
    files: DiskFiles, tmp_path: Path
) -> None:
    ledger, _ = filled(files, str(tmp_path / "t-0"))
    before = {facts.base_offset: facts.max_timestamp_ms for facts in ledger.segments.facts()}
    close_cleanly(ledger)
    again = reopened(files, str(tmp_path / "t-0"))
    told: list[OSError] = []
    again.segments.on_unreadable = told.append
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.rename(tmp_path / "away")
    await again.segments.read_max_timestamp(0)
    assert next(again.segments.facts()).max_timestamp_ms == NO_TIMESTAMP
    assert [error.errno for error in told] == [errno.ENOENT]
    # A reader that looks for a moment is not sent past the records that it may have meant.
    for _ in range(2):
        with pytest.raises(Unreadable):
            await again.batches.offset_for_timestamp(0, 0, ALL)
    # It was only away.
    (tmp_path / "away").rename(path)
    await again.batches.offset_for_timestamp(0, 0, ALL)
    assert next(again.segments.facts()).max_timestamp_ms == before[0]
    close_cleanly(again)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
async def test_the_timestamp_of_a_segment_that_is_there_stays_unknown(
    error: int, files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = filled(files, str(tmp_path / "t-0"))
    close_cleanly(ledger)
    again = reopened(files, str(tmp_path / "t-0"))

    def refused(_: Descriptors, name: str, *, create: bool) -> DiskFile:
        raise OSError(error, os.strerror(error), name)

    with monkeypatch.context() as patch:
        patch.setattr(Descriptors, "open", refused)
        with pytest.raises(Unreadable):
            await again.segments.read_max_timestamp(0)
    assert next(again.segments.facts()).max_timestamp_ms is None
    close_cleanly(again)


async def test_searches_of_batches_that_lie_about_their_times_stop_no_others(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their headers tell of a time that none of their many records has."""
    limits = LogConfig()
    lying = ledgers.filled(files, str(tmp_path / "t-0"), limits, [])[0]
    records = encode_records([SimpleRecord(b"k", b"", 1_000)] * 40_000)
    for _ in range(4):
        batch, header = packed_batch(
            records._replace(max_timestamp=5_000), base_offset=lying.end_offset
        )
        lying.append(batch, header)
    ordinary, _ = filled(files, str(tmp_path / "t-1"))
    ends, looked_at = threading.Event(), 0

    def held(batch: Buffer, header: BatchHeader, *asked: int) -> TimestampOffset | None:
        nonlocal looked_at
        if header.record_count == 40_000:
            looked_at += 1
            assert ends.wait(60)
        return first_record_since(batch, header, *asked)

    monkeypatch.setattr(searching, "first_record_since", held)
    searches = [
        asyncio.create_task(lying.batches.offset_for_timestamp(2_000, 0, ALL)) for _ in range(12)
    ]
    try:
        while not looked_at:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            assert await ordinary.batches.read_cold(0, 1, ALL)
            assert await ordinary.batches.offset_for_timestamp(0, 0, ALL) is not None
        # Those whose clients have gone end with the batch that they look at.
        for search in searches:
            search.cancel()
        await asyncio.wait(searches)
    finally:
        ends.set()
    assert looked_at <= 2


async def test_a_search_goes_on_where_its_turn_has_ended(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_RECORDS_OF_A_TURN", 2)
    monkeypatch.setattr(searching, "_BYTES_OF_A_TURN", 200)
    limits = LogConfig(index_interval_bytes=10**6)
    ledger = ledgers.filled(files, str(tmp_path / "t-0"), limits, [])[0]
    for count, timestamp, told in ((1, 9, 9), (3, 5, 50), (1, 5, 50), (2, 6, 50), (5, 20, 50)):
        records = encode_records([SimpleRecord(b"k", b"", timestamp)] * count)
        batch, header = packed_batch(
            records._replace(max_timestamp=told), base_offset=ledger.end_offset
        )
        ledger.append(batch, header)
    found = await ledger.batches.offset_for_timestamp(10, 0, ALL)
    assert found is not None and (found.offset, found.timestamp_ms) == (7, 20)
    assert await ledger.batches.offset_for_timestamp(21, 0, ALL) is None
