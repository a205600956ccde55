"""Validate, append, durable, visible, answer; and what readers are given."""

from __future__ import annotations

import asyncio
import random

import pytest

from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.segments.aborted_index import AbortedTransaction
from tests.logstore.partitions import SteppedPartition, batch_of, delete_records
from tests.logstore.reading import records_from
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import (
    BatchHeader,
    Compression,
    Marker,
    Record,
    SimpleRecord,
    TimestampType,
    crc_ok,
    iterate_batches,
    iterate_records,
    set_log_append_time,
)

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


def refusal_of(partition: SteppedPartition, batch: bytes | bytearray) -> ErrorCode:
    """The refusal's code; whatever is refused leaves everything as it was."""
    state, end_offset = repr(partition.log.state), partition.ledger.end_offset
    with pytest.raises(KafkaError) as refused:
        partition.log.append(partition.log.check(bytearray(batch), partition.now_ms))
    assert repr(partition.log.state) == state
    assert partition.ledger.end_offset == end_offset
    assert partition.ledger.attachments.names() == []
    return refused.value.code


def altered(batch: bytearray, position: int, value: int) -> bytearray:
    batch[position] = value
    return batch


def test_what_is_refused_leaves_no_trace() -> None:
    """Trap: validation after the append."""
    partition = SteppedPartition(LogConfig(max_message_bytes=1_000))
    now_ms = partition.now_ms
    assert refusal_of(partition, b"") is ErrorCode.INVALID_RECORD
    assert refusal_of(partition, batch_of(b"x")[:-1]) is ErrorCode.INVALID_RECORD
    assert refusal_of(partition, batch_of(b"x") * 2) is ErrorCode.INVALID_RECORD
    assert refusal_of(partition, altered(batch_of(b"x"), 16, 1)) is ErrorCode.INVALID_RECORD
    assert refusal_of(partition, altered(batch_of(b"x"), 30, 9)) is ErrorCode.CORRUPT_MESSAGE
    assert refusal_of(partition, batch_of(b"x" * 1_000)) is ErrorCode.MESSAGE_TOO_LARGE
    late = batch_of(b"x", timestamp=now_ms + 3_600_001)
    assert refusal_of(partition, late) is ErrorCode.INVALID_TIMESTAMP
    broker_time = batch_of(b"x")
    set_log_append_time(broker_time, now_ms)
    assert refusal_of(partition, broker_time) is ErrorCode.INVALID_TIMESTAMP


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    partition = SteppedPartition(LogConfig(segment_bytes=500))
    assert refusal_of(partition, batch_of(b"x" * 600)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_what_the_topics_codec_makes_fit_into_a_segment_is_taken() -> None:
    partition = SteppedPartition(LogConfig(segment_bytes=500, compression=Compression.GZIP))
    noise = random.Random(1).randbytes(600)
    assert refusal_of(partition, batch_of(noise)) is ErrorCode.RECORD_LIST_TOO_LARGE
    partition.log.append(partition.log.check(batch_of(b"x" * 600), partition.now_ms))


def test_a_compacted_topic_needs_keys_compressed_or_not() -> None:
    partition = SteppedPartition(LogConfig(cleanup_policy=frozenset({"compact"})))
    for compression in Compression:
        batch = batch_of(b"x", key=None, compression=compression)
        assert refusal_of(partition, batch) is ErrorCode.INVALID_RECORD
        batch = batch_of(b"x", compression=compression)
        partition.ledger.on_roll = lambda _: None
        with pytest.raises(KafkaError):
            partition.log.append(partition.log.check(batch_of(b"x", key=None), partition.now_ms))
    assert partition.log.append(partition.log.check(batch, partition.now_ms)).base_offset == 0


def test_records_older_than_the_topic_allows_are_refused() -> None:
    partition = SteppedPartition(LogConfig(message_timestamp_before_max_ms=100))
    assert refusal_of(partition, batch_of(b"x", timestamp=800)) is ErrorCode.INVALID_TIMESTAMP
    assert (
        partition.log.append(partition.log.check(batch_of(b"x", timestamp=900), 1_000)).base_offset
        == 0
    )


def test_a_plain_batch_inside_the_producers_transaction_is_refused() -> None:
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    before = repr(partition.log.state)
    with pytest.raises(KafkaError) as refused:
        partition.append(b"y", producer_id=1, epoch=0, sequence=1)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert repr(partition.log.state) == before


def test_offsets_and_leader_epoch_are_written_in_place_and_the_crc_stays_right() -> None:
    partition = SteppedPartition()
    partition.log.leader_epoch = 7
    partition.append(b"a", b"b")
    batch = batch_of(b"c")
    appended = partition.log.append(partition.log.check(memoryview(bytes(batch)), partition.now_ms))
    assert (appended.base_offset, appended.last_offset, appended.end_offset) == (2, 2, 3)
    partition.settle()
    found = partition.log.reader.read(0, 1_000, UNCOMMITTED)
    assert found is not None
    batches = list(iterate_batches(found.records))
    assert [header.base_offset for header, _ in batches] == [0, 2]
    assert {header.partition_leader_epoch for header, _ in batches} == {7}
    assert all(crc_ok(data) for _, data in batches)
    assert partition.log.end_offset_for_epoch(7) == (7, 3)


def test_nothing_is_visible_before_it_is_durable() -> None:
    """Trap: the high watermark ahead of the bytes."""
    partition = SteppedPartition()
    partition.append(b"a")
    for isolation in Isolation:
        found = partition.log.reader.read(0, 1_000, isolation)
        assert found is not None and not found.records
        assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (0, 0, 0)
    partition.settle()
    found = partition.log.reader.read(0, 1_000, COMMITTED)
    assert found is not None and found.records
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (1, 1, 0)


async def test_a_duplicate_waits_for_its_original_to_be_durable() -> None:
    partition = SteppedPartition()
    first = partition.append(b"a", producer_id=1, epoch=0, sequence=0)
    again = partition.append(b"a", producer_id=1, epoch=0, sequence=0)
    # Its time is that of its original's records, also where the log has none of its own.
    assert again == first._replace(is_duplicate=True, log_append_time_ms=1_000)
    waiting = asyncio.ensure_future(partition.log.durable(again.end_offset))
    await asyncio.sleep(0)
    assert not waiting.done()
    partition.settle()
    await waiting


def test_a_duplicate_after_a_restart_is_answered_with_its_original_offset_and_time() -> None:
    """Trap: state lost on restart; all five batches, not the last one alone."""
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    partition = SteppedPartition(config)
    originals = []
    for n in range(6):
        partition.now_ms += 10
        originals.append(partition.append(b"x", producer_id=1, epoch=0, sequence=n))
    partition.settle()
    for reopen in (partition.restart, partition.crash):
        reopen()
        partition.now_ms += 1_000
        for n in range(1, 6):
            again = partition.append(b"x", producer_id=1, epoch=0, sequence=n)
            assert again == originals[n]._replace(is_duplicate=True)
            assert again.log_append_time_ms == 1_000 + 10 * (n + 1)


def test_a_write_that_fails_is_not_taken_for_a_duplicate_on_retry() -> None:
    """Trap: the sequence persisted apart from its batch."""
    partition = SteppedPartition()
    partition.append(b"a", producer_id=1, epoch=0, sequence=0)
    partition.settle()
    partition.append(b"b", producer_id=1, epoch=0, sequence=1)
    partition.crash()
    again = partition.append(b"b", producer_id=1, epoch=0, sequence=1)
    assert (again.base_offset, again.is_duplicate) == (1, False)


def test_a_zombies_batch_after_its_abort_marker_is_refused() -> None:
    """Trap: it opened an ownerless transaction, or was committed by the next one."""
    partition = SteppedPartition()
    partition.append(b"a", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.end(1, commit=False, epoch=1)
    with pytest.raises(KafkaError) as refused:
        partition.append(b"late", producer_id=1, epoch=0, sequence=1, transactional=True)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert not partition.log.transactions.is_open(1)
    partition.append(b"new", producer_id=1, epoch=1, sequence=0, transactional=True)
    partition.end(1, commit=True, epoch=1)
    partition.settle()
    found = partition.log.reader.read(0, 10_000, COMMITTED)
    assert found is not None and found.aborted == [AbortedTransaction(1, 0)]


def test_read_uncommitted_returns_aborted_data_and_no_list() -> None:
    partition = SteppedPartition()
    partition.append(b"a", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.append(b"plain")
    partition.end(1, commit=False)
    partition.append(b"open", producer_id=2, epoch=0, sequence=0, transactional=True)
    partition.settle()
    log = partition.log
    found = log.reader.read(0, 10_000, UNCOMMITTED)
    assert found is not None and found.aborted is None
    assert [header.base_offset for header, _ in iterate_batches(found.records)] == [0, 1, 2, 3]
    found = log.reader.read(0, 10_000, COMMITTED)
    assert found is not None and found.aborted == [AbortedTransaction(1, 0)]
    assert [header.base_offset for header, _ in iterate_batches(found.records)] == [0, 1, 2]
    assert (log.reader.bound(UNCOMMITTED), log.reader.bound(COMMITTED)) == (4, 3)


def test_a_fetch_is_told_of_the_aborts_in_what_it_returns_only() -> None:
    partition = SteppedPartition()
    for n in range(200):
        partition.append(b"a", producer_id=1, epoch=0, sequence=n, transactional=True)
        partition.end(1, commit=False)
    partition.settle()
    found = partition.log.reader.read(0, 1, COMMITTED)
    assert found is not None and found.aborted == [AbortedTransaction(1, 0)]
    found = partition.log.reader.read(399, 1, COMMITTED)
    assert found is not None and found.aborted == [AbortedTransaction(1, 398)]


def test_offsets_outside_the_log_are_out_of_range() -> None:
    partition = SteppedPartition()
    for _ in range(4):
        partition.append(b"a")
    partition.settle()
    delete_records(partition.log, 2)
    for offset in (-1, 1, 5):
        with pytest.raises(KafkaError) as refused:
            partition.log.reader.read(offset, 100, UNCOMMITTED)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    found = partition.log.reader.read(4, 100, UNCOMMITTED)
    assert found is not None and not found.records
    assert found.log_start_offset == 2


def test_between_stable_offset_and_log_end_a_committed_read_is_empty_not_an_error() -> None:
    partition = SteppedPartition()
    partition.append(b"a", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.append(b"b")
    partition.settle()
    for offset in (0, 1, 2):
        found = partition.log.reader.read(offset, 100, COMMITTED)
        assert found is not None and not found.records and found.aborted == []


def test_log_append_time_is_written_into_the_batch() -> None:
    partition = SteppedPartition(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    appended = partition.log.append(partition.log.check(batch_of(b"a", timestamp=5), 77_000))
    assert appended.log_append_time_ms == 77_000
    partition.settle()
    found = partition.log.reader.read(0, 1_000, UNCOMMITTED)
    assert found is not None and crc_ok(found.records)
    header = BatchHeader.parse(found.records)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 77_000
    assert [record.timestamp for record in iterate_records(found.records)] == [77_000]


def test_under_create_time_the_answer_carries_no_append_time() -> None:
    assert SteppedPartition().append(b"a").log_append_time_ms == -1


def test_times_are_looked_up_below_the_readers_bound() -> None:
    partition = SteppedPartition()
    for producer_id, n in ((-1, 1), (1, 2), (-1, 3)):
        partition.now_ms = 1_000 * n
        if producer_id < 0:
            partition.append(b"a")
        else:
            partition.append(b"a", producer_id=1, epoch=0, sequence=0, transactional=True)
    log = partition.log
    assert asyncio.run(log.reader.offset_for_timestamp(0)) is None
    assert asyncio.run(log.reader.max_timestamp_offset()) is None
    partition.settle()
    found = asyncio.run(log.reader.offset_for_timestamp(1_500))
    assert found is not None and (found.offset, found.timestamp_ms) == (1, 2_000)
    assert asyncio.run(log.reader.offset_for_timestamp(1_500, COMMITTED)) is None
    latest = asyncio.run(log.reader.max_timestamp_offset())
    assert latest is not None and (latest.offset, latest.timestamp_ms) == (2, 3_000)
    # The latest record of those that are visible, while a later one becomes durable.
    partition.now_ms = 9_000
    partition.append(b"a")
    assert asyncio.run(log.reader.max_timestamp_offset()) == latest
    stable = asyncio.run(log.reader.max_timestamp_offset(COMMITTED))
    assert stable is not None and (stable.offset, stable.timestamp_ms) == (0, 1_000)


def test_a_coordinators_records_and_markers_come_back_in_order() -> None:
    partition = SteppedPartition()
    records = [SimpleRecord(b"k1", b"v1", 1), SimpleRecord(b"k2", None, 2)]
    log = partition.log
    log.append_records(records)
    log.append_records(records[:1], producer_id=3, producer_epoch=0, is_transactional=True)
    log.append_records(records[1:], producer_id=3, producer_epoch=0, is_transactional=True)
    assert log.transactions.is_open(3)
    partition.end(3, commit=True)
    found = [entry for _, entry in records_from(log.reader, 1)]
    assert [entry.key for entry in found if isinstance(entry, Record)] == [b"k2", b"k1", b"k2"]
    assert isinstance(found[-1], Marker) and found[-1].control_type == 1
    with pytest.raises(KafkaError) as refused:
        partition.end(3, commit=True, epoch=1)
        log.append_records(records, producer_id=3, producer_epoch=0, is_transactional=True)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_deleted_records_are_gone_after_a_restart_too_and_a_later_abort_is_kept() -> None:
    partition = SteppedPartition(segment_bytes=300)
    for n in range(6):
        partition.append(b"x" * 60, producer_id=1, epoch=0, sequence=n, transactional=True)
        partition.end(1, commit=False)
    partition.settle()
    log = partition.log
    assert delete_records(log, 7) == 7
    assert delete_records(log, 3) == 7
    assert [entry.first_offset for entry in log.transactions.aborted] == [6, 8, 10]
    with pytest.raises(KafkaError) as refused:
        delete_records(log, 13)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    state = log.state
    log = partition.restart()
    assert log.log_start_offset == 7
    assert log.state == state
    assert delete_records(log, -1) == 12
    assert log.last_stable_offset == 12


def test_a_deleted_open_transaction_does_not_hold_readers_below_the_start() -> None:
    partition = SteppedPartition()
    partition.append(b"a", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.append(b"b")
    partition.settle()
    delete_records(partition.log, 1)
    assert partition.log.last_stable_offset == partition.log.log_start_offset == 1


def test_subscribers_hear_of_every_move_until_they_leave() -> None:
    partition = SteppedPartition()
    heard: list[int] = []

    def hear() -> None:
        heard.append(partition.log.high_watermark)
        if len(heard) == 2:
            partition.log.reader.unsubscribe(hear)

    partition.log.reader.subscribe(hear)
    for _ in range(3):
        partition.append(b"a")
        partition.settle()
    assert heard == [1, 2]
