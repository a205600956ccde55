"""What retention gives up: by time, by size, never what is not stable; and what goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.retention import Due, due, due_in
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshots import snapshot_name
from logstore.segments.ledger import SegmentFacts
from logstore.segments.names import aborted_name
from tests.logstore.partitions import SteppedPartition, expire
from wire.error_code import ErrorCode
from wire.errors import KafkaError

NOW_MS = 100_000
KEEP_ALL = LogConfig(retention_ms=-1, retention_bytes=-1)


def log_of(*segments: tuple[int, int | None]) -> list[SegmentFacts]:
    """Segments of ten records each, of these sizes and largest timestamps."""
    return [
        SegmentFacts(10 * place, 10 * place + 10, size, timestamp)
        for place, (size, timestamp) in enumerate(segments)
    ]


def start(
    segments: list[SegmentFacts],
    *,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    start_offset: int = 0,
    stable_offset: int = 10**6,
) -> Due:
    return due(
        segments,
        replace(KEEP_ALL, retention_ms=retention_ms, retention_bytes=retention_bytes),
        size_bytes=sum(each.size_bytes for each in segments),
        start_offset=start_offset,
        stable_offset=stable_offset,
        now_ms=NOW_MS,
    )


def test_a_segment_goes_when_its_latest_record_is_older_than_the_retention_time() -> None:
    segments = log_of((100, NOW_MS - 51), (100, NOW_MS - 50), (100, NOW_MS))
    assert start(segments, retention_ms=50) == Due(10)
    assert start(segments, retention_ms=49) == Due(20)
    assert start(segments, retention_ms=51) == Due(0)
    assert start(segments) == Due(0)


def test_a_record_ahead_of_the_clock_keeps_what_follows_it() -> None:
    assert start(log_of((100, 1), (100, NOW_MS + 9), (100, 1)), retention_ms=50) == Due(10)


def test_the_active_segment_goes_with_the_last_of_its_records() -> None:
    assert start(log_of((100, 1), (100, 2)), retention_ms=50) == Due(20)
    empty_tail = [*log_of((100, 1)), SegmentFacts(10, 10, 0, -1)]
    assert start(empty_tail, retention_ms=50) == Due(10)
    assert start(empty_tail[1:], retention_ms=50, start_offset=10) == Due(10)


def test_by_size_as_much_is_kept_as_was_asked_for_at_least() -> None:
    segments = log_of((100, 1), (70, 1), (30, 1))
    assert start(segments, retention_bytes=100) == Due(10)
    assert start(segments, retention_bytes=101) == Due(0)
    assert start(segments, retention_bytes=30) == Due(20)
    assert start(segments, retention_bytes=29) == Due(20)
    assert start(segments, retention_bytes=0) == Due(30)


def test_size_and_time_take_turns_as_in_kafka() -> None:
    segments = log_of((100, NOW_MS), (100, 1), (100, NOW_MS))
    assert start(segments, retention_bytes=200) == Due(10)
    assert start(segments, retention_bytes=200, retention_ms=50) == Due(20)
    assert start(segments, retention_ms=50) == Due(0)


def test_nothing_goes_that_is_not_stable() -> None:
    segments = log_of((100, 1), (100, 1), (100, 1))
    assert start(segments, retention_ms=50, stable_offset=20) == Due(20)
    assert start(segments, retention_ms=50, retention_bytes=0, stable_offset=19) == Due(10)


def test_a_segment_without_timestamps_goes_with_a_later_one_that_is_due() -> None:
    assert start(log_of((100, -1), (100, 1), (100, NOW_MS)), retention_ms=50) == Due(20)
    assert start(log_of((100, -1), (100, NOW_MS)), retention_ms=50) == Due(0)
    assert start(log_of((100, -1)), retention_ms=0) == Due(0)


def test_a_timestamp_that_has_to_be_read_is_asked_for_only_where_it_decides() -> None:
    segments = log_of((100, 1), (100, None), (100, NOW_MS))
    assert start(segments, retention_ms=50) == Due(10, unread=10)
    assert start(segments, retention_bytes=100) == Due(20)
    assert start(segments, retention_bytes=100, retention_ms=50) == Due(20)


@given(
    segments=st.lists(
        st.tuples(st.integers(1, 50), st.integers(NOW_MS - 20, NOW_MS + 2) | st.just(-1)),
        max_size=8,
    ),
    retention_ms=st.integers(-1, 20),
    retention_bytes=st.integers(-1, 200),
    stable=st.integers(0, 90),
)
def test_what_is_kept_and_what_goes(
    segments: list[tuple[int, int]], retention_ms: int, retention_bytes: int, stable: int
) -> None:
    facts = log_of(*segments)
    found, unread = start(
        facts, retention_ms=retention_ms, retention_bytes=retention_bytes, stable_offset=stable
    )
    assert unread is None
    assert found in {0, *(each.end_offset for each in facts)}
    assert found <= stable or found == 0
    gone = [each for each in facts if each.end_offset <= found]
    kept = facts[len(gone) :]
    if gone and retention_ms < 0:
        assert 0 <= retention_bytes <= sum(each.size_bytes for each in kept)
    if gone and retention_bytes < 0:
        times = [each.max_timestamp_ms or 0 for each in gone]
        assert all(time == -1 or NOW_MS - time > retention_ms for time in times)
        assert times[-1] != -1
    if kept and kept[0].end_offset <= stable and kept[0].max_timestamp_ms != -1:
        assert kept[0].max_timestamp_ms is not None
        assert retention_ms < 0 or NOW_MS - kept[0].max_timestamp_ms <= retention_ms
        excess = sum(each.size_bytes for each in kept) - retention_bytes
        assert retention_bytes < 0 or excess < kept[0].size_bytes


# A partition that gives up what is due.


@pytest.fixture
def partition() -> SteppedPartition:
    return SteppedPartition(LogConfig(retention_ms=500), segment_bytes=300)


def fill(partition: SteppedPartition, count: int) -> None:
    for _ in range(count):
        partition.append(b"x" * 100)
        partition.now_ms += 100
    partition.settle()


def give_up(partition: SteppedPartition) -> int:
    log = partition.log
    found = due_in(log, log.ledger.segments.facts(), partition.now_ms).start_offset
    expire(log, found)
    return found


def test_readers_below_the_new_start_are_told_and_others_go_on(
    partition: SteppedPartition,
) -> None:
    fill(partition, 20)
    heard: list[int] = []
    partition.log.reader.subscribe(lambda: heard.append(partition.log.log_start_offset))
    found = give_up(partition)
    assert 0 < found < 20 and heard == [found]
    assert partition.log.log_start_offset == found
    with pytest.raises(KafkaError) as refused:
        partition.log.reader.read(found - 1, 10**6, Isolation.READ_UNCOMMITTED)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    kept = partition.log.reader.read(found, 10**6, Isolation.READ_COMMITTED)
    assert kept is not None and kept.log_start_offset == found and kept.records
    assert give_up(partition) == found, "nothing more is due"
    assert heard == [found]


def test_a_log_whose_records_are_all_due_is_empty_and_goes_on(
    partition: SteppedPartition,
) -> None:
    fill(partition, 5)
    partition.append(b"y", producer_id=7, epoch=0, sequence=0)
    partition.settle()
    partition.now_ms += 10_000
    assert give_up(partition) == 6
    assert (partition.log.size_bytes, partition.log.log_start_offset) == (0, 6)
    log = partition.restart()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (6, 6, 6)
    assert partition.append(b"y", producer_id=7, epoch=0, sequence=0).is_duplicate
    assert partition.append(b"z", producer_id=7, epoch=0, sequence=1).base_offset == 6


def test_an_open_transaction_keeps_its_records_and_all_after_it(
    partition: SteppedPartition,
) -> None:
    fill(partition, 4)
    partition.append(b"x", producer_id=7, epoch=0, sequence=0, transactional=True)
    fill(partition, 10)
    partition.now_ms += 10_000
    assert give_up(partition) <= 4
    partition.end(7, commit=True)
    partition.settle()
    assert give_up(partition) < partition.log.log_end_offset, "the marker is young"
    partition.now_ms += 10_000
    assert give_up(partition) == partition.log.log_end_offset


def test_aborted_entries_and_snapshots_go_with_their_segments(
    partition: SteppedPartition,
) -> None:
    for sequence in range(6):
        partition.append(b"x" * 50, producer_id=7, epoch=0, sequence=sequence, transactional=True)
        partition.end(7, commit=False)
        partition.settle()
        partition.now_ms += 100
    bases = list(partition.ledger.segments.base_offsets)
    names = partition.ledger.attachments.names()
    assert aborted_name(0) in names and snapshot_name(bases[1], KAFKA_SUFFIX) in names
    partition.now_ms += 200
    found = give_up(partition)
    assert found in bases[2:]
    names = partition.ledger.attachments.names()
    for base_offset in bases:
        is_kept = base_offset >= found
        assert is_kept or aborted_name(base_offset) not in names
        assert is_kept or snapshot_name(base_offset, KAFKA_SUFFIX) not in names
    first = next(partition.log.transactions.aborted.entries(0, 10**6))
    assert first.last_offset >= found
    before = partition.log.state
    assert partition.restart().state == before


def test_a_compacted_log_is_not_cut(partition: SteppedPartition) -> None:
    fill(partition, 10)
    partition.now_ms += 10_000
    partition.log.reconfigure(
        replace(partition.config, cleanup_policy=frozenset({"compact"}), retention_bytes=0)
    )
    assert give_up(partition) == 0
    both = frozenset({"compact", "delete"})
    partition.log.reconfigure(replace(partition.config, cleanup_policy=both))
    assert give_up(partition) == 10
