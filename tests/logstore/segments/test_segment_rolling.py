"""When a segment is full: by bytes, by the records' time, by its indexes, by relative offsets."""

from __future__ import annotations

import pytest

from logstore.partition.log_config import LogConfig
from logstore.segments.segment import RECENT_BATCHES_MAX, Segment
from tests.logstore.simulated_disk import SimulatedDisk
from wire.records import BatchHeader, SimpleRecord, build_batch

DAY_MS = 24 * 3600 * 1000
INTERVAL = 4096


@pytest.fixture
def segment() -> Segment:
    disk = SimulatedDisk()
    disk.make_directory("/t-0")
    return Segment.create(disk, "/t-0", 100)


def header(offset: int, *, size: int = 100, timestamp: int = 5000, count: int = 1) -> BatchHeader:
    return BatchHeader(
        offset, size - 12, 0, 2, 0, 0, count - 1, timestamp, timestamp, -1, -1, -1, count
    )


def test_a_batch_that_does_not_fit_any_more_begins_a_new_segment(segment: Segment) -> None:
    limits = LogConfig(segment_bytes=1000)
    assert not segment.is_full_for(header(100, size=5000), limits), "an empty one takes any batch"
    segment.append(header(100, size=900), INTERVAL, is_recent=False)
    assert not segment.is_full_for(header(101, size=100), limits)
    assert segment.is_full_for(header(101, size=101), limits)


def test_time_is_counted_by_the_records(segment: Segment) -> None:
    limits = LogConfig(segment_ms=7 * DAY_MS)
    segment.append(header(100, timestamp=5000), INTERVAL, is_recent=False)
    segment.append(header(101, timestamp=6000), INTERVAL, is_recent=False)
    assert not segment.is_full_for(header(102, timestamp=5000 + 7 * DAY_MS), limits)
    assert segment.is_full_for(header(102, timestamp=5001 + 7 * DAY_MS), limits)


def test_records_without_a_time_never_roll(segment: Segment) -> None:
    segment.append(header(100, timestamp=-1), INTERVAL, is_recent=False)
    assert not segment.is_full_for(header(101, timestamp=10**12), LogConfig())


def test_the_first_timestamp_is_known_after_a_restart() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/t-0")
    segment = Segment.create(disk, "/t-0", 0)
    batch = build_batch([SimpleRecord(None, b"x", 5000)])
    segment.file.write((batch,), 0)
    segment.append(BatchHeader.parse(batch), INTERVAL)
    again = Segment(disk, "/t-0", 0)
    again.size = segment.size
    again.load_indexes()
    again.resume_at(segment.size, 1)
    assert again.is_full_for(header(1, timestamp=5001 + 7 * DAY_MS), LogConfig())
    assert not again.is_full_for(header(1, timestamp=5000 + 7 * DAY_MS), LogConfig())


def test_full_indexes_begin_a_new_segment(segment: Segment) -> None:
    limits = LogConfig(segment_index_bytes=40)
    offset = 100
    while not segment.is_full_for(header(offset, timestamp=offset), limits):
        segment.append(header(offset, timestamp=offset), 10, is_recent=False)
        offset += 1
    assert segment.offset_index is not None and segment.time_index is not None
    assert len(segment.offset_index.encode()) <= 40
    assert len(segment.time_index.encode()) <= 40 - 12, "room for the last entry"
    assert offset == 100 + 3


def test_full_indexes_are_known_after_a_restart() -> None:
    """Of a segment that was closed, and of one whose end recovery has found."""
    disk = SimulatedDisk()
    disk.make_directory("/t-0")
    segment = Segment.create(disk, "/t-0", 0)
    for offset in range(10):
        batch = build_batch([SimpleRecord(None, b"x", 5000)], base_offset=offset)
        segment.file.write((batch,), segment.size)
        segment.append(BatchHeader.parse(batch), 10)
    for file in segment.flush_indexes():
        file.close()
    entries = 9
    just_full = LogConfig(segment_index_bytes=8 * (entries + 1) - 1)
    closed, recovered = Segment(disk, "/t-0", 0), Segment(disk, "/t-0", 0)
    closed.resume_closed(segment.size, 10)
    recovered.size = segment.size
    recovered.load_indexes()
    assert recovered.offset_index is not None
    recovered.offset_index.truncate(9)
    recovered.resume_at(segment.size, 10)
    assert closed.is_full_for(header(10), just_full)
    assert not closed.is_full_for(header(10), LogConfig(segment_index_bytes=8 * (entries + 1)))
    assert not recovered.is_full_for(header(10), just_full), "an entry was dropped"
    assert recovered.is_full_for(header(10), LogConfig(segment_index_bytes=8 * entries - 1))


def test_an_offset_beyond_32_bits_begins_a_new_segment(segment: Segment) -> None:
    segment.append(header(100), INTERVAL, is_recent=False)
    last_that_fits = 100 + 2**31 - 1
    assert not segment.is_full_for(header(last_that_fits), LogConfig())
    assert segment.is_full_for(header(last_that_fits, count=2), LogConfig())


def test_the_positions_of_the_latest_batches_are_kept_within_bounds() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/t-0")
    segment = Segment.create(disk, "/t-0", 0)
    batch = build_batch([SimpleRecord(None, b"x", 5000)])
    for offset in range(3 * RECENT_BATCHES_MAX):
        batch[0:8] = offset.to_bytes(8, "big")
        segment.file.write((batch,), segment.size)
        segment.append(BatchHeader.parse(batch), INTERVAL)
    end, size = segment.next_offset, len(batch)
    assert segment.recent_range(0, 1, end, at_least_one=True) is None
    oldest = next(
        offset
        for offset in range(end)
        if segment.recent_range(offset, 1, end, at_least_one=True) is not None
    )
    assert RECENT_BATCHES_MAX // 2 <= end - oldest <= RECENT_BATCHES_MAX
    for offset in range(oldest, end):
        found = segment.recent_range(offset, 2 * size, end, at_least_one=True)
        assert found == (offset * size, min(offset + 2, end) * size)
