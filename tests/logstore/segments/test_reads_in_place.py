"""Reads that leave many bytes in their file: the same batches as any other read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.disk import descriptors
from logstore.disk.file_range import FileRange
from logstore.disk.files import DiskFiles
from logstore.partition.log_config import LogConfig
from logstore.segments import segment_reads
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import Unreadable
from tests.logstore import ledgers
from tests.logstore.ledgers import close_cleanly
from wire.records import BatchHeader, SimpleRecord, build_batch
from wire.records.header import LENGTH_OVERHEAD, read_span

LIMITS = LogConfig(segment_bytes=3000, index_interval_bytes=300)
SIZES = [50, 200, 10, 700, 90] * 8
ALL = 2**62


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileLedger]:
    for module in (descriptors, segment_reads):
        monkeypatch.setattr(module, "RANGE_BYTES_MIN", 500)
    files = DiskFiles(str(tmp_path))
    ledger, _ = ledgers.filled(files, str(tmp_path / "t-0"), LIMITS, SIZES)
    yield ledger
    close_cleanly(ledger)
    files.close()


def _forget_recent(ledger: FileLedger) -> None:
    """Let every read go by the index, as those of older batches do."""
    for segment in ledger.segments._segments:
        del segment._recent_offsets[:]
        del segment._recent_positions[:]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("max_bytes", [1, 400, 700, 1200, 10**6])
async def test_they_bring_whole_batches_from_the_one_that_was_asked_for(
    ledger: FileLedger, max_bytes: int, by_index: bool
) -> None:
    in_place, active_base = 0, ledger.segments.base_offsets[-1]
    for offset in range(len(SIZES)):
        for end_offset in (offset + 1, offset + 4, ALL):
            expected = bytes(await ledger.batches.read_cold(offset, max_bytes, end_offset))
            if by_index:
                _forget_recent(ledger)
            found = ledger.batches.read(offset, max_bytes, end_offset)
            in_place += isinstance(found, FileRange)
            data = bytes(found or b"")
            assert data and expected.startswith(data)
            # By the index it may end before the last batch that fits.
            assert data == expected or by_index or offset < active_base
            assert offsets_of(data)[0] == offset
    assert bool(in_place) == (max_bytes >= 700 or not by_index)


@pytest.mark.parametrize("max_bytes", [700, 2000, 10**6])
async def test_batches_that_are_longer_than_what_is_read_of_the_one_before_them(
    ledger: FileLedger, max_bytes: int
) -> None:
    first, count = ledger.end_offset, 30
    for number in range(count):
        records = [SimpleRecord(None, bytes(100), 0)] * 5
        batch = build_batch(records, base_offset=first + 5 * number)
        assert len(batch) > 500 > LIMITS.index_interval_bytes
        ledger.append(batch, BatchHeader.parse(batch))
    _forget_recent(ledger)
    for offset in range(first, first + 5 * count):
        expected = bytes(await ledger.batches.read_cold(offset, max_bytes, ALL))
        found = ledger.batches.read(offset, max_bytes, ALL)
        assert isinstance(found, FileRange)
        assert bytes(found) and expected.startswith(bytes(found))
        base_offset = first + (offset - first) // 5 * 5
        assert offsets_of(bytes(found))[0] == base_offset


def offsets_of(data: bytes) -> list[int]:
    """Return the base offsets of the batches that `data` is made of, to its last byte."""
    offsets, at = [], 0
    while at < len(data):
        base_offset, length, _ = read_span(data, at)
        offsets.append(base_offset)
        at += length + LENGTH_OVERHEAD
    assert at == len(data)
    return offsets


@pytest.mark.parametrize("by_index", [False, True])
async def test_what_another_program_has_done_to_the_file_is_not_served(
    ledger: FileLedger, tmp_path: Path, by_index: bool
) -> None:
    if by_index:
        _forget_recent(ledger)
    base = ledger.segments.base_offsets[-1]
    (tmp_path / "t-0" / f"{base:020d}.log").write_bytes(bytes(3000))
    with pytest.raises(Unreadable):
        ledger.batches.read(base, 10**6, ALL)
