"""The rules of compaction with values: how far, what stays, and in which segments."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from random import Random

import pytest

from logstore.cleaner.batches import BatchCleaner, CleaningPlan
from logstore.cleaner.offset_map import SLOT_BYTES, OffsetMap
from logstore.cleaner.plan import Cleanable, cleanable, grouped, is_dirty_enough, is_overdue
from logstore.cleaner.run import OffsetMapLimits
from logstore.partition.log_config import LogConfig
from logstore.segments.aborted_index import AbortedEntry, AbortedIndex
from logstore.segments.ledger import SegmentFacts
from tests.logstore.compaction import check_replay, clean, committed_records
from tests.logstore.partitions import SteppedPartition, batch_of
from wire.errors import WireError
from wire.records import BatchHeader, SimpleRecord, build_batch, iterate_records, parse_marker
from wire.records.header import BATCH_LENGTH_MIN, pack_batch
from wire.records.varint import encode_varint
from wire.types import INT64_MAX

HOUR_MS = 3_600_000
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=1_000)
#: Every batch of these tests fills a segment.
TINY = 80


def facts(count: int, size_bytes: int = 100, newest_ms: int | None = 0) -> list[SegmentFacts]:
    return [
        SegmentFacts(10 * number, 10 * number + 10, size_bytes, newest_ms)
        for number in range(count)
    ]


def found(segments: list[SegmentFacts], config: LogConfig = COMPACTED, **given: int) -> Cleanable:
    defaults = {"first_dirty_offset": 0, "start_offset": 0, "stable_offset": 10**6, "now_ms": 0}
    return cleanable(segments, config, **{**defaults, **given})


def test_the_active_segment_is_never_cleaned() -> None:
    assert found(facts(4)).end_offset == 30
    assert found(facts(1)).segments == ()
    assert found([]).segments == ()


def test_nor_the_one_with_the_last_batch() -> None:
    segments = [*facts(3), SegmentFacts(30, 30, 0, -1)]
    assert found(segments).end_offset == 20


@pytest.mark.parametrize(("stable", "end"), [(30, 30), (29, 20), (20, 20), (5, 0)])
def test_nothing_from_the_stable_offset_on_is_cleaned(stable: int, end: int) -> None:
    assert found(facts(6), stable_offset=stable).end_offset == end


def test_young_records_are_left_alone() -> None:
    config = LogConfig(min_compaction_lag_ms=HOUR_MS)
    segments = [
        SegmentFacts(0, 10, 100, 0),
        SegmentFacts(10, 20, 100, HOUR_MS),
        SegmentFacts(20, 30, 100, 0),
        SegmentFacts(30, 40, 100, 0),
    ]
    assert found(segments, config, now_ms=HOUR_MS).end_offset == 10
    assert found(segments, config, now_ms=2 * HOUR_MS).end_offset == 30
    # What is clean has been old enough once.
    assert found(segments, config, now_ms=HOUR_MS, first_dirty_offset=20).end_offset == 30


def test_an_unknown_age_must_be_read_first() -> None:
    config = LogConfig(min_compaction_lag_ms=HOUR_MS)
    assert found(facts(3, newest_ms=None), config).unread == 0
    assert found(facts(3, newest_ms=None)).unread is None


def test_the_dirty_ratio_is_of_what_may_be_cleaned() -> None:
    result = found(facts(5), first_dirty_offset=30)
    assert (result.clean_bytes, result.dirty_bytes, result.dirty_ratio) == (300, 100, 0.25)
    assert not is_dirty_enough(result, LogConfig(min_cleanable_dirty_ratio=0.25))
    assert is_dirty_enough(result, LogConfig(min_cleanable_dirty_ratio=0.24))
    assert not is_dirty_enough(found(facts(1)), LogConfig(min_cleanable_dirty_ratio=0.0))


@pytest.mark.parametrize("checkpointed", [3, 999])
def test_a_checkpoint_that_the_log_does_not_have_counts_as_its_start(checkpointed: int) -> None:
    result = found(facts(5), first_dirty_offset=checkpointed, start_offset=5)
    assert result.first_dirty_offset == 5


def test_what_has_waited_too_long_is_overdue() -> None:
    config = LogConfig(max_compaction_lag_ms=HOUR_MS)
    assert is_overdue(config, 1_000, HOUR_MS + 1_001)
    assert not is_overdue(config, 1_000, HOUR_MS + 1_000)
    assert not is_overdue(config, -1, 10 * HOUR_MS)
    assert not is_overdue(LogConfig(), 1_000, 10**15)


def test_groups_fit_a_segment_each() -> None:
    config = LogConfig(segment_bytes=350)
    groups = grouped(facts(7), config, 65)
    assert [(group.base_offset, group.end_offset) for group in groups] == [
        (0, 30),
        (30, 60),
        (60, 70),
    ]
    assert [group.end_offset for group in grouped(facts(7), config, 60)] == [30, 60]


def test_a_group_spans_no_more_offsets_than_an_index_can_tell() -> None:
    segments = [SegmentFacts(0, 10, 1, 0), SegmentFacts(10, 2**31, 1, 0)]
    assert len(grouped(segments, LogConfig(), 2**31)) == 1
    assert len(grouped([*segments, SegmentFacts(2**31, 2**31 + 1, 1, 0)], LogConfig(), 2**40)) == 2


def test_the_offset_map_remembers_the_last_of_each_key() -> None:
    random = Random(1)
    expected: dict[bytes, int] = {}
    offset_map = OffsetMap(400, 0.9)
    for offset in range(3_000):
        key = b"%d" % random.randrange(350)
        if key in expected or not offset_map.is_full:
            offset_map.put(key, offset)
            expected[key] = offset
    assert len(offset_map) == len(expected)
    assert {key: offset_map.get(key) for key in expected} == expected
    assert offset_map.get(b"another") == -1


def test_a_large_offset_map_is_made_in_no_time() -> None:
    # To clear its memory would hold the event loop, which waits for the interpreter, for 80 ms.
    began_s = time.thread_time()
    OffsetMap(OffsetMapLimits().buffer_bytes // SLOT_BYTES)
    assert time.thread_time() - began_s < 0.02


def test_a_batch_of_many_records_takes_little_memory() -> None:
    count = 50_000
    batch = build_batch([SimpleRecord(b"key", b"", 0)] * count)
    plan = CleaningPlan(0, (), frozenset(), -1, 0, 0)
    cleaner = BatchCleaner(plan, OffsetMap(10), lambda _: None)
    tracemalloc.start()
    try:
        assert cleaner.clean(BatchHeader.parse(batch), batch, is_last=False) is batch
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Its bytes, and where each record begins and ends.
    assert peak_bytes < 2 * len(batch) + 16 * count


def test_the_offset_map_has_its_bound() -> None:
    offset_map = OffsetMap(10, 0.5)
    for offset in range(offset_map.capacity):
        assert not offset_map.is_full
        offset_map.put(b"%d" % offset, offset)
    assert offset_map.is_full and offset_map.capacity == 5


def test_what_the_map_knows_of_mapped_records_is_what_a_look_would_say() -> None:
    random = Random(2)
    offset_map = OffsetMap(400, 0.9, 100, 300)
    keys = [b"%d" % random.randrange(60) for _ in range(200)]
    for offset, key in enumerate(keys, 100):
        offset_map.put(key, offset)
    assert offset_map.tells_of(100, 300)
    assert not offset_map.tells_of(99, 300) and not offset_map.tells_of(100, 301)
    for offset, key in enumerate(keys, 100):
        assert bool(offset_map.superseded[offset - 100]) == (offset < offset_map.get(key))


# Whole runs.


def compacted(config: LogConfig = COMPACTED) -> SteppedPartition:
    return SteppedPartition(config, segment_bytes=TINY)


def put(
    partition: SteppedPartition, key: bytes, value: bytes | None, sequence: int | None = None
) -> None:
    """Append a record; with a sequence, of producer 1's transaction."""
    records = [SimpleRecord(key, value, partition.now_ms)]
    batch = build_batch(records)
    if sequence is not None:
        batch = build_batch(
            records,
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
    partition.log.append(partition.log.check(batch, partition.now_ms))
    partition.settle()


def seal(partition: SteppedPartition) -> None:
    """Seal the segments of all that came before, twice."""
    for _ in range(2):
        put(partition, b"sealed", b"sealed")


def run(partition: SteppedPartition, limits: OffsetMapLimits | None = None) -> None:
    clean(partition.log, partition.now_ms, partition.settle, limits)
    check_replay(partition.log, partition.now_ms)


def headers(partition: SteppedPartition) -> list[BatchHeader]:
    return [header for header, _ in partition.log.ledger.batches.iterate(0)]


def test_with_too_many_offsets_for_that_every_key_is_looked_up() -> None:
    """Few slots and many offsets: what stands beside the table would be larger than it."""
    logs = []
    for limits in (None, OffsetMapLimits(buffer_bytes=4 * SLOT_BYTES)):
        partition = compacted()
        for number in range(12):
            put(partition, b"%d" % (number % 2), b"%d" % number)
        seal(partition)
        run(partition, limits)
        logs.append(committed_records(partition.log))
    assert logs[0] == logs[1]
    assert [value for _, value in logs[0].values()][:2] == [b"10", b"11"]


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    partition = compacted()
    put(partition, b"a", b"1")
    put(partition, b"a", None)
    seal(partition)
    run(partition)
    tombstone = headers(partition)[0]
    assert tombstone.has_delete_horizon and tombstone.base_offset == 1
    assert tombstone.base_timestamp == partition.now_ms + COMPACTED.delete_retention_ms
    assert committed_records(partition.log)[1] == (b"a", None)
    timestamps = [record.timestamp for record in iterate_records(batches(partition)[0])]
    assert timestamps == [partition.now_ms]
    partition.now_ms += COMPACTED.delete_retention_ms - 1
    seal(partition)
    run(partition)
    assert 1 in committed_records(partition.log)
    partition.now_ms += 1
    seal(partition)
    run(partition)
    assert 1 not in committed_records(partition.log)


def test_a_tombstone_stays_where_it_is_kept_for_the_longest_time() -> None:
    """The clock and delete.retention.ms are together more than a timestamp can hold."""
    partition = compacted(replace(COMPACTED, delete_retention_ms=INT64_MAX))
    put(partition, b"a", None)
    for _ in range(2):
        seal(partition)
        run(partition)
    assert headers(partition)[0].base_timestamp == INT64_MAX
    tombstone = next(iterate_records(batches(partition)[0]))
    assert (tombstone.key, tombstone.timestamp) == (b"a", partition.now_ms)


def test_the_time_of_a_tombstone_begins_when_what_it_deletes_goes() -> None:
    partition = compacted()
    for number in range(6):
        put(partition, b"%d" % number, b"v")
    both = [SimpleRecord(b"6", b"v", partition.now_ms), SimpleRecord(b"0", None, partition.now_ms)]
    partition.log.append(partition.log.check(build_batch(both), partition.now_ms))
    seal(partition)
    run(partition, OffsetMapLimits(buffer_bytes=8 * SLOT_BYTES, load_factor=0.9))
    assert partition.log.first_dirty_offset == 7, "the map has no room for the tombstone"
    assert {0, 7} <= committed_records(partition.log).keys()
    partition.now_ms += COMPACTED.delete_retention_ms
    seal(partition)
    run(partition)
    assert 0 not in committed_records(partition.log)
    assert 7 in committed_records(partition.log), "who has read the value sees it deleted"


def batches(partition: SteppedPartition) -> list[memoryview]:
    return [batch for _, batch in partition.log.ledger.batches.iterate(0)]


def transact(partition: SteppedPartition, key: bytes, sequence: int, *, commit: bool) -> None:
    put(partition, key, b"v", sequence)
    partition.end(1, commit=commit)
    partition.settle()


def markers(partition: SteppedPartition) -> list[int]:
    return [header.base_offset for header in headers(partition) if header.is_control]


def test_a_marker_stays_while_its_data_does_then_for_its_time() -> None:
    partition = compacted()
    transact(partition, b"a", 0, commit=True)
    transact(partition, b"b", 1, commit=False)
    # Seven later batches: the first two are not remembered any more.
    for sequence in range(2, 9):
        transact(partition, b"c", sequence, commit=True)
    seal(partition)
    run(partition)
    assert committed_records(partition.log)[0] == (b"a", b"v")
    assert markers(partition)[:2] == [1, 3], "the aborted data was there when the marker was met"
    assert [entry.last_offset for entry in partition.log.transactions.aborted] == [3]
    seal(partition)
    run(partition)
    second = next(header for header in headers(partition) if header.base_offset == 3)
    assert second.has_delete_horizon
    assert parse_marker(batches(partition)[2]).coordinator_epoch == 0
    partition.now_ms += COMPACTED.delete_retention_ms
    put(partition, b"a", b"later")
    transact(partition, b"d", 9, commit=False)
    seal(partition)
    run(partition)
    assert 3 not in markers(partition), "its time is over, and another abort is the last"
    assert 1 in markers(partition), "what it committed was there when this run began"


def test_the_last_five_batches_of_a_producer_are_known_after_compaction() -> None:
    partition = compacted()
    for sequence in range(8):
        transact(partition, b"a", sequence, commit=True)
    seal(partition)
    run(partition)
    state = partition.log.producers[1]
    remembered = [batch.base_offset for batch in state.remembered()]
    assert remembered == [6, 8, 10, 12, 14]
    empty = {header.base_offset for header in headers(partition) if not header.record_count}
    assert set(remembered[:-1]) <= empty
    partition.log.expire_producers([*partition.log.producers], partition.now_ms + 10**9)
    partition.now_ms += 10**9
    seal(partition)
    clean(partition.log, partition.now_ms, partition.settle)
    assert not [header for header in headers(partition) if not header.record_count]


def test_a_map_too_small_cleans_a_part_and_goes_on() -> None:
    partition = compacted()
    for number in range(40):
        put(partition, b"%d" % (number % 20), b"%d" % number)
    seal(partition)
    limits = OffsetMapLimits(buffer_bytes=8 * SLOT_BYTES, load_factor=0.9)
    first = clean(partition.log, partition.now_ms, partition.settle, limits)
    assert first is not None and 0 < first.first_dirty_offset < 20
    while clean(partition.log, partition.now_ms, partition.settle, limits) is not None:
        check_replay(partition.log, partition.now_ms)
    latest = {key: offset for offset, (key, _) in committed_records(partition.log).items()}
    assert {latest[b"%d" % number] for number in range(20)} == set(range(20, 40))


def test_a_clean_log_is_left_as_it_is() -> None:
    partition = compacted()
    for number in range(6):
        put(partition, b"%d" % number, b"v")
    seal(partition)
    run(partition)
    before = [bytes(batch) for batch in batches(partition)]
    done = clean(partition.log, partition.now_ms, partition.settle)
    assert done is None
    assert [bytes(batch) for batch in batches(partition)] == before


def test_records_without_a_key_go() -> None:
    partition = SteppedPartition(LogConfig(), segment_bytes=TINY)
    partition.log.append(partition.log.check(batch_of(b"1", key=None), partition.now_ms))
    put(partition, b"a", b"1")
    seal(partition)
    run(partition)
    assert 0 not in committed_records(partition.log)


@pytest.mark.parametrize("delta", [0, 2, 1_000_000])
def test_a_record_with_an_offset_of_its_own_removes_no_other(delta: int) -> None:
    """Another broker has taken whatever its header described rightly."""
    partition = SteppedPartition(LogConfig(), segment_bytes=TINY)
    records = b"".join(
        encode_varint(len(body)) + body
        for body in (b"\0\0" + encode_varint(at) + b"\2a\2v\0" for at in (0, delta))
    )
    header = BatchHeader.parse(build_batch([SimpleRecord(b"a", b"v", 0)] * 2))
    header = header._replace(batch_length=BATCH_LENGTH_MIN + len(records))
    batch = pack_batch(header, records)
    partition.log.append((batch, BatchHeader.parse(batch), partition.now_ms))
    put(partition, b"a", b"later")
    seal(partition)
    before = [bytes(batch) for batch in batches(partition)]
    with pytest.raises(WireError, match="offset delta"):
        run(partition)
    assert [bytes(batch) for batch in batches(partition)] == before


def test_entries_of_a_range_are_replaced_and_others_stay() -> None:
    entries = [AbortedEntry(1, at, at + 1, at + 2) for at in range(0, 50, 10)]
    index = AbortedIndex(entries)
    copy = index.copied()
    index.replace(10, 31, [entries[2]])
    assert list(index) == [entries[0], entries[2], entries[3], entries[4]]
    index.replace(40, 60, [])
    assert list(index) == [entries[0], entries[2], entries[3]]
    assert list(copy) == entries


def test_what_is_left_of_a_long_index_overlaps_as_before() -> None:
    random = Random(3)
    entries, offset = [], 0
    for _ in range(700):
        offset += random.randrange(1, 5)
        first = max(0, offset - random.randrange(1, 40))
        entries.append(AbortedEntry(random.randrange(9), first, offset + 1, first))
        offset += 2
    for _ in range(20):
        first_offset = random.randrange(offset)
        end_offset = first_offset + random.randrange(offset)
        kept = [
            entry
            for entry in entries
            if not first_offset <= entry.last_offset < end_offset or random.random() < 0.3
        ]
        index = AbortedIndex(entries)
        inside = [entry for entry in kept if first_offset <= entry.last_offset < end_offset]
        index.replace(first_offset, end_offset, inside)
        assert list(index) == kept
        assert index.overlapping(0, offset) == AbortedIndex(kept).overlapping(0, offset)
        middle = offset // 2
        assert index.overlapping(middle, middle + 9) == AbortedIndex(kept).overlapping(
            middle, middle + 9
        )
