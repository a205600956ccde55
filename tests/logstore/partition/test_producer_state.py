"""Idempotence at the partition: duplicates, gaps, epochs, expiry, int32 wrap."""

from __future__ import annotations

import sys

import pytest

from logstore.partition.log_config import LogConfig
from logstore.partition.producer_state import Producers
from logstore.partition.transaction_buffer import TransactionMarker
from tests.logstore.partitions import SteppedPartition
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader

INT32_MAX = 2**31 - 1


def header(
    producer_id: int, epoch: int, sequence: int, count: int = 1, base_offset: int = 0
) -> BatchHeader:
    return BatchHeader(
        base_offset=base_offset,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=base_offset + 1000,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def refusal(producers: Producers, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        producers.check(batch)
    return refused.value.code


def producers_after(*batches: BatchHeader) -> Producers:
    producers = Producers()
    for batch in batches:
        assert producers.check(batch) is None
        producers.on_batch(batch, 0)
    return producers


def test_a_duplicate_of_the_last_five_batches_is_answered_with_its_original_offset() -> None:
    batches = [header(1, 0, 10 * n, 10, base_offset=100 * n) for n in range(7)]
    producers = producers_after(*batches)
    for batch in batches[-5:]:
        original = producers.check(batch._replace(base_offset=0))
        assert original is not None
        assert (original.base_offset, original.last_offset) == (
            batch.base_offset,
            batch.last_offset,
        )
        assert original.max_timestamp == batch.max_timestamp
    assert refusal(producers, batches[1]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_cut_differently_is_no_duplicate() -> None:
    producers = producers_after(header(1, 0, 0, 10))
    assert refusal(producers, header(1, 0, 0, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_from_int32_max_to_zero() -> None:
    producers = producers_after(header(1, 0, INT32_MAX - 1, 2))
    assert refusal(producers, header(1, 0, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(1, 0, 0)) is None


def test_a_batch_across_the_wrap_continues_and_is_remembered() -> None:
    across = header(1, 0, INT32_MAX - 1, 5, base_offset=40)
    producers = producers_after(across)
    assert producers.check(header(1, 0, 3)) is None
    original = producers.check(across._replace(base_offset=0))
    assert original is not None and original.base_offset == 40
    assert original.last_sequence == 2


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """Its state may have expired, or its records been deleted: Kafka takes it too."""
    assert Producers().check(header(1, 3, 77)) is None


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    producers = producers_after(header(1, 0, 0, 3))
    assert refusal(producers, header(1, 1, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers = producers_after(header(1, 0, 0, 3), header(1, 1, 0, 3))
    assert refusal(producers, header(1, 0, 3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    # The same sequences under the old epoch are a zombie's, not a duplicate.
    assert refusal(producers, header(1, 0, 0, 3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_of_a_later_epoch_fences_and_restarts_the_sequence() -> None:
    producers = producers_after(header(1, 0, 0, 3))
    producers.on_marker(1, 1, 0, timestamp=5, steady_ms=0)
    assert refusal(producers, header(1, 0, 3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, header(1, 1, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(1, 1, 0)) is None


def test_a_marker_of_the_same_epoch_lets_the_sequence_go_on() -> None:
    producers = producers_after(header(1, 0, 0, 3))
    producers.on_marker(1, 0, 0, timestamp=5, steady_ms=0)
    assert producers.check(header(1, 0, 3)) is None
    assert producers.check(header(1, 0, 0, 3)) is not None


def marker_refusal(
    producers: Producers, epoch: int, coordinator_epoch: int, version: int, *, is_open: bool
) -> ErrorCode | None:
    marker = TransactionMarker(1, epoch, coordinator_epoch, True, version)
    try:
        producers.check_marker(marker, is_open=is_open)
    except KafkaError as error:
        return error.code
    return None


def test_markers_of_zombies_are_refused() -> None:
    producers = producers_after(header(1, 4, 0))
    producers.on_marker(1, 4, 7, timestamp=0, steady_ms=0)
    assert marker_refusal(producers, 3, 7, 1, is_open=False) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker_refusal(producers, 4, 6, 1, is_open=False) is fenced
    assert marker_refusal(producers, 4, 7, 1, is_open=True) is None
    assert marker_refusal(producers, 5, 8, 1, is_open=True) is None


def test_under_transaction_version_2_a_marker_is_later_than_its_data() -> None:
    producers = producers_after(header(1, 4, 0))
    assert marker_refusal(producers, 4, 0, 2, is_open=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert marker_refusal(producers, 5, 0, 2, is_open=True) is None
    producers.on_marker(1, 5, 0, timestamp=0, steady_ms=0)
    # Written again after a crash: the transaction has ended, so it does no harm.
    assert marker_refusal(producers, 5, 0, 2, is_open=False) is None


def test_a_silent_producer_expires_unless_its_transaction_is_open() -> None:
    partition = SteppedPartition(LogConfig(producer_id_expiration_ms=5_000))
    partition.append(b"a", producer_id=1, epoch=0, sequence=0)
    partition.append(b"b", producer_id=2, epoch=0, sequence=0, transactional=True)
    partition.now_ms += 4_000
    partition.append(b"c", producer_id=3, epoch=0, sequence=0)
    partition.now_ms += 1_000
    assert partition.log.expire_producers([*partition.log.producers], partition.now_ms) == [1]
    assert set(partition.log.producers) == {2, 3}
    partition.append(b"d", producer_id=1, epoch=0, sequence=9)
    partition.end(2, commit=True)
    partition.now_ms += 5_000
    log = partition.log
    assert sorted(log.expire_producers([*log.producers], partition.now_ms)) == [1, 2, 3]


def test_producers_whose_ids_are_forgotten_go_unless_their_transactions_are_open() -> None:
    partition = SteppedPartition()
    for producer_id in (1, 2, 3):
        partition.append(b"a", producer_id=producer_id, epoch=0, sequence=0, transactional=True)
    for producer_id in (1, 2):
        partition.end(producer_id, commit=True)
    log = partition.log
    log.producers.forget_ended({1, 3, 4}, log.transactions.open_producer_ids())
    assert set(log.producers) == {2, 3}
    assert log.producers.has_forgotten


def test_expiry_goes_by_the_brokers_clock_not_by_the_records_timestamps() -> None:
    partition = SteppedPartition(LogConfig(producer_id_expiration_ms=5_000))
    partition.now_ms = 10**12
    batch = header(1, 0, 0)
    partition.log.state.on_batch(batch._replace(max_timestamp=77), partition.now_ms)
    assert (
        partition.log.expire_producers([*partition.log.producers], partition.now_ms + 4_999) == []
    )


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_falls_silent_only_while_the_broker_runs(*, is_clean: bool) -> None:
    config = LogConfig(producer_id_expiration_ms=5_000, snapshot_interval_bytes=1)
    partition = SteppedPartition(config)
    partition.append(b"a", producer_id=1, epoch=0, sequence=0)
    partition.now_ms += 4_000
    partition.append(b"b", producer_id=2, epoch=0, sequence=0)
    partition.settle()
    # Either the broker was down for days, or the wall clock was set: nothing tells which.
    partition.now_ms += 10**9
    log = partition.restart() if is_clean else partition.crash()
    assert log.expire_producers([*log.producers], partition.now_ms + 999) == []
    assert log.expire_producers([*log.producers], partition.now_ms + 1_000) == [1]
    assert log.expire_producers([*log.producers], partition.now_ms + 5_000) == [2]


def test_a_hundred_thousand_producers_fit_into_memory() -> None:
    producers = Producers()
    for producer_id in range(1_000):
        for n in range(6):
            producers.on_batch(header(producer_id, 0, n, base_offset=producer_id * 10 + n), n)
    one = producers[5]
    size = sys.getsizeof(one) + sum(
        sys.getsizeof(getattr(one, name)) for name in type(one).__slots__
    )
    assert size < 600, "so 10^5 producers stay below 60 MB"
