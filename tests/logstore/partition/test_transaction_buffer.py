"""What is stable: closed by default, moved by durable markers only."""

from __future__ import annotations

import pytest

from logstore.partition.reader import Isolation
from logstore.partition.transaction_buffer import OpenTransaction, TransactionMarker
from tests.logstore.partitions import SteppedPartition
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import SimpleRecord, iterate_batches


def test_a_reader_racing_the_first_batch_of_a_transaction_never_sees_it() -> None:
    """Trap: the stable offset includes the batch at first, and is corrected only later."""
    partition = SteppedPartition()
    partition.append(b"plain")
    partition.settle()
    seen: list[tuple[int, int]] = []
    log = partition.log
    log.reader.subscribe(lambda: seen.append((log.high_watermark, log.last_stable_offset)))
    for n in range(5):
        partition.append(b"x", producer_id=1, epoch=0, sequence=n, transactional=True)
        assert log.last_stable_offset == 1
        partition.settle()
    assert seen == [(2 + n, 1) for n in range(5)]


def test_a_tight_committed_read_loop_against_thousands_of_starts_sees_ended_ones_only() -> None:
    """Whatever step of a sync a reader runs at, it meets no batch of an open transaction."""
    partition = SteppedPartition()
    ended: set[int] = set()
    position, steps = 0, 0
    for n in range(2_000):
        appended = partition.append(b"x", producer_id=n, epoch=0, sequence=0, transactional=True)
        if n >= 3:
            partition.end(n - 3, commit=True)
            ended.add(n - 3)
        for _ in range(n % 4):
            partition.executor.step()
            steps += 1
            found = partition.log.reader.read(position, 1 << 20, Isolation.READ_COMMITTED)
            assert found is not None and found.aborted == []
            for header, _ in iterate_batches(found.records):
                assert header.producer_id in ended
                position = header.next_offset
    assert position > appended.base_offset - 50 and steps > 2_000


def test_a_marker_that_is_not_durable_yet_leaves_its_transaction_open() -> None:
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.settle()
    partition.end(1, commit=True)
    assert not partition.log.transactions.is_open(1)
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (1, 0)
    partition.settle()
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (2, 2)


def test_a_producers_next_transaction_does_not_release_the_one_in_flight() -> None:
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.settle()
    partition.end(1, commit=True)
    partition.append(b"y", producer_id=1, epoch=0, sequence=1, transactional=True)
    assert partition.log.last_stable_offset == 0
    partition.settle()
    assert partition.log.last_stable_offset == 2
    assert list(partition.log.transactions.open_transactions()) == [
        OpenTransaction(1, 0, 2, partition.now_ms)
    ]


def test_the_oldest_open_transaction_bounds_all_others() -> None:
    partition = SteppedPartition()
    for producer_id in (1, 2, 3):
        partition.append(b"x", producer_id=producer_id, epoch=0, sequence=0, transactional=True)
    partition.end(2, commit=True)
    partition.end(3, commit=True)
    partition.settle()
    assert partition.log.last_stable_offset == 0
    partition.end(1, commit=True)
    partition.settle()
    assert partition.log.last_stable_offset == partition.log.high_watermark == 6


def test_an_empty_marker_changes_nothing_and_takes_an_offset() -> None:
    partition = SteppedPartition()
    appended = partition.end(9, commit=False)
    partition.settle()
    assert appended.base_offset == 0
    assert partition.log.last_stable_offset == 1
    assert len(partition.log.transactions.aborted) == 0


def test_a_tail_of_markers_and_aborted_data_alone_moves_the_reader_on() -> None:
    """Trap: readers that stop because nothing in the answer is for them."""
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.end(1, commit=False)
    partition.settle()
    position = 0
    for _ in range(2):
        found = partition.log.reader.read(position, 1, Isolation.READ_COMMITTED)
        assert found is not None and found.records
        position += 1
    found = partition.log.reader.read(position, 1, Isolation.READ_COMMITTED)
    assert found is not None and not found.records
    assert position == found.last_stable_offset == 2


def test_a_hundred_thousand_open_transactions_close_in_any_order_in_linear_time() -> None:
    partition = SteppedPartition()
    buffer = partition.log.transactions
    count = 20_000
    buffer.restore(OpenTransaction(n, 0, n, 0) for n in range(count))
    for n in range(count):
        buffer.on_marker(n, count + n, commit=n % 2 == 0)
        buffer.stabilize(count + n + 1)
    assert buffer.last_stable_offset == 2 * count


def test_data_of_a_later_epoch_never_joins_what_an_earlier_one_has_left_open() -> None:
    """One marker would end both: the fenced data with the new, or the new with the fenced."""
    partition = SteppedPartition()
    partition.append(b"old", producer_id=1, epoch=0, sequence=0, transactional=True)
    with pytest.raises(KafkaError) as refused:
        partition.append(b"new", producer_id=1, epoch=2, sequence=0, transactional=True)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    offsets = [SimpleRecord(b"k", b"v", 0)]
    with pytest.raises(KafkaError) as refused:
        partition.log.append_records(
            offsets, producer_id=1, producer_epoch=2, is_transactional=True
        )
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partition.end(1, commit=False)
    partition.append(b"new", producer_id=1, epoch=2, sequence=0, transactional=True)
    assert [one.producer_epoch for one in partition.log.transactions.open_transactions()] == [2]


@pytest.mark.parametrize(
    ("marker_epoch", "transaction_version", "is_earlier"),
    [(4, 1, False), (5, 1, True), (5, 2, False), (6, 2, True)],
)
def test_a_marker_knows_whether_what_is_open_is_its_transactions(
    marker_epoch: int, transaction_version: int, is_earlier: bool
) -> None:
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=4, sequence=0, transactional=True)
    marker = TransactionMarker(1, marker_epoch, 0, True, transaction_version)
    assert partition.log.transactions.is_of_earlier(marker) is is_earlier
    assert not partition.log.transactions.is_of_earlier(marker._replace(producer_id=2))
