"""Snapshots: what is written is what is read; what is not whole is not used."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.disk.pieces import whole
from logstore.partition import snapshots
from logstore.partition.log_config import LogConfig
from logstore.partition.snapshot import (
    SUFFIX,
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_pieces,
)
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshot_kafka import (
    decode_kafka_snapshot,
    encode_kafka_snapshot,
    kafka_snapshot_pieces,
)
from logstore.partition.snapshots import snapshot_name, snapshot_offsets
from tests.logstore.partitions import SteppedPartition, delete_records
from tests.logstore.traffic import OPERATIONS, Traffic

STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(1, 4)), max_size=40
)


def partition_after(steps: list[tuple[str, int, int]]) -> SteppedPartition:
    partition = SteppedPartition()
    traffic = Traffic(partition.log)
    for step in steps:
        traffic.perform(*step)
    return partition


@given(STEPS)
@settings(deadline=None)
def test_our_snapshot_holds_the_whole_state(steps: list[tuple[str, int, int]]) -> None:
    state = partition_after(steps).log.state
    snapshot = decode_snapshot(encode_snapshot(state))
    assert snapshot.last_aborted_offset == state.transactions.aborted.last_offset
    snapshot.state.transactions.aborted = state.transactions.aborted
    assert snapshot.state == state
    seen = [producer.seen_ms for producer in snapshot.state.producers.values()]
    assert seen == [producer.seen_ms for producer in state.producers.values()]


@given(STEPS, STEPS, STEPS)
@settings(deadline=None)
def test_a_view_stays_as_the_state_was_whatever_the_producers_do_next(
    before: list[tuple[str, int, int]],
    between: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
) -> None:
    partition = SteppedPartition()
    traffic = Traffic(partition.log)
    views = []
    for steps in (before, between, after):
        for step in steps:
            traffic.perform(*step)
        state = partition.log.state
        views.append((state.view(), encode_snapshot(state), encode_kafka_snapshot(state)))
    for view, own, kafkas in views:
        assert whole(snapshot_pieces(view)) == own
        assert whole(kafka_snapshot_pieces(view)) == kafkas


@given(STEPS)
@settings(deadline=None)
def test_kafkas_snapshot_holds_each_producers_last_batch_and_open_transaction(
    steps: list[tuple[str, int, int]],
) -> None:
    state = partition_after(steps).log.state
    read = decode_kafka_snapshot(encode_kafka_snapshot(state), state.end_offset, 5)
    assert set(read.producers) == set(state.producers)
    for producer_id, producer in state.producers.items():
        found = read.producers[producer_id]
        assert found.producer_epoch == producer.producer_epoch
        assert found.coordinator_epoch == producer.coordinator_epoch
        last, expected = found.last_batch(), producer.last_batch()
        assert (last is None) == (expected is None)
        if last is not None and expected is not None:
            assert last[:4] == expected[:4]
            assert found.last_sequence == producer.last_sequence
    offsets = [one.first_offset for one in state.transactions.open_transactions()]
    assert [one.first_offset for one in read.transactions.open_transactions()] == offsets


@given(STEPS, st.data())
@settings(deadline=None)
def test_a_damaged_snapshot_is_refused(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    state = partition_after(steps).log.state
    encoders = [
        (encode_snapshot(state), decode_snapshot),
        (encode_kafka_snapshot(state), lambda found: decode_kafka_snapshot(found, 0, 0)),
    ]
    for data_of, decode in encoders:
        damaged = bytearray(data_of)
        if data.draw(st.booleans()):
            del damaged[data.draw(st.integers(0, len(data_of) - 1)) :]
        else:
            damaged[data.draw(st.integers(0, len(data_of) - 1))] ^= data.draw(st.integers(1, 255))
        try:
            decode(bytes(damaged))
        except CorruptSnapshot:
            continue
        raise AssertionError("a damaged snapshot was taken")


def test_a_snapshot_of_less_than_it_counts_is_refused_whatever_the_checksum_says() -> None:
    state = partition_after([("plain", 0, 1)]).log.state
    encoded = encode_snapshot(state)
    for body in (encoded[10:-1], encoded[10:] + b"x"):
        data = encoded[:6] + crc32c(body).to_bytes(4, "big") + body
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(data)


def snapshots_of(partition: SteppedPartition, suffix: str = SUFFIX) -> list[int]:
    return snapshot_offsets(partition.ledger.attachments.names(), suffix)


def fill(partition: SteppedPartition, count: int) -> None:
    for _ in range(count):
        partition.append(b"x" * 100)


def test_a_snapshot_is_written_when_its_end_is_durable_and_not_before() -> None:
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=500))
    fill(partition, 4)
    assert snapshots_of(partition) == []
    partition.settle()
    assert snapshots_of(partition) == [4]


def test_small_batches_have_a_snapshot_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_BATCHES", 10)
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=1 << 20))
    for _ in range(5):
        fill(partition, 5)
        partition.settle()
    assert snapshots_of(partition) == [10, 20]


def test_a_large_state_is_encoded_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_BATCHES", 10)
    monkeypatch.setattr(snapshots, "_BYTES_FOR_A_BATCH", 1)
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=1 << 20))
    for producer_id in range(12):
        partition.append(b"x", producer_id=producer_id, epoch=0, sequence=0)
    partition.settle()
    fill(partition, 30)
    partition.settle()
    assert snapshots_of(partition) == [10]


def test_a_process_that_is_killed_again_and_again_replays_no_more_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "_BATCHES", 10)
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=1 << 20))
    for _ in range(7):
        fill(partition, 3)
        partition.settle()
        partition.crash()
    assert snapshots_of(partition) == [10, 20]


def test_recovery_does_not_grow_with_the_age_of_the_oldest_transaction() -> None:
    """Trap: snapshots at the stable offset. The transaction stays open throughout."""
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=2_000))
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    for _ in range(50):
        fill(partition, 10)
        partition.settle()
    assert partition.log.last_stable_offset == 0
    newest = max(snapshots_of(partition))
    assert partition.log.log_end_offset - newest < 20
    partition.crash()
    assert partition.log.transactions.is_open(1)
    assert partition.log.last_stable_offset == 0


def test_a_few_snapshots_are_kept() -> None:
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=200), segment_bytes=2_000)
    for _ in range(40):
        fill(partition, 3)
        partition.settle()
    assert len(snapshots_of(partition)) <= 3
    bases = list(partition.ledger.segments.base_offsets)
    assert snapshots_of(partition, KAFKA_SUFFIX) == bases[1:]


def test_snapshots_of_trimmed_segments_are_deleted() -> None:
    partition = SteppedPartition(segment_bytes=1_000)
    fill(partition, 30)
    partition.settle()
    delete_records(partition.log, 20)
    bases = partition.ledger.segments.base_offsets
    assert bases[0] > 0
    assert all(offset >= bases[0] for offset in snapshots_of(partition, KAFKA_SUFFIX))


def test_a_snapshot_beyond_the_recovered_end_is_deleted() -> None:
    partition = SteppedPartition()
    fill(partition, 3)
    partition.settle()
    partition.ledger.attachments.write(snapshot_name(9), encode_snapshot(partition.log.state))
    partition.ledger.attachments.write(snapshot_name(9, KAFKA_SUFFIX), b"")
    partition.crash()
    assert snapshots_of(partition) == snapshots_of(partition, KAFKA_SUFFIX) == []


def test_a_snapshot_of_another_log_is_passed_over() -> None:
    """Its end is right, its last batch is not."""
    other = SteppedPartition()
    other.append(b"a", producer_id=77, epoch=0, sequence=0)
    partition = SteppedPartition()
    partition.append(b"b", producer_id=1, epoch=0, sequence=0)
    partition.settle()
    partition.ledger.attachments.write(snapshot_name(1), encode_snapshot(other.log.state))
    partition.crash()
    assert set(partition.log.producers) == {1}
    assert snapshots_of(partition) == []


def test_a_torn_snapshot_gives_way_to_the_older_one() -> None:
    partition = SteppedPartition(LogConfig(snapshot_interval_bytes=300))
    for n in range(9):
        partition.append(b"x" * 50, producer_id=1, epoch=0, sequence=n)
        partition.settle()
    state = partition.log.state
    older, newer = snapshots_of(partition)
    partition.ledger.attachments.write(snapshot_name(newer), b"MGNS")
    partition.crash()
    assert partition.log.state == state
    assert older in snapshots_of(partition)


def test_a_lost_aborted_index_is_rebuilt_from_the_log() -> None:
    partition = SteppedPartition()
    partition.append(b"x", producer_id=1, epoch=0, sequence=0, transactional=True)
    partition.end(1, commit=False)
    partition.settle()
    partition.restart()
    state = partition.log.state
    name = next(name for name in partition.ledger.attachments.names() if "txnindex" in name)
    whole = partition.ledger.attachments.read(name)
    for damaged in (b"", b"\x00" * 34, b"\x07" * 50, (whole or b"")[:20]):
        partition.ledger.attachments.write(name, damaged)
        partition.crash()
        assert partition.log.state == state
        assert partition.ledger.attachments.read(name) == whole


def test_without_our_snapshot_kafkas_serves() -> None:
    partition = SteppedPartition()
    for n in range(3):
        partition.append(b"x", producer_id=1, epoch=0, sequence=n, transactional=True)
    partition.restart()
    for offset in snapshots_of(partition):
        partition.ledger.attachments.delete(snapshot_name(offset))
    partition.crash()
    last = partition.log.producers[1].last_batch()
    assert last is not None and (last.base_sequence, last.base_offset) == (2, 2)
    assert len(list(partition.log.producers[1].remembered())) == 1
    assert partition.log.transactions.is_open(1)
    assert partition.log.end_offset_for_epoch(0) == (0, 3)


def test_an_unclean_start_writes_a_snapshot_before_anything_can_be_trimmed() -> None:
    """Or the next loss of power takes the state of segments deleted since."""
    partition = SteppedPartition(segment_bytes=1_000)
    fill(partition, 20)
    partition.settle()
    for offset in snapshots_of(partition):
        partition.ledger.attachments.delete(snapshot_name(offset))
    partition.crash()
    assert snapshots_of(partition) == [20]


def test_the_aborted_indexes_of_segments_that_are_gone_go_too() -> None:
    """A later segment of the same base offset would begin with the deleted segment's entries."""
    partition = SteppedPartition(segment_bytes=500)
    for n in range(8):
        partition.append(b"x" * 80, producer_id=1, epoch=0, sequence=n, transactional=True)
        partition.end(1, commit=False)
    partition.settle()
    delete_records(partition.log, 12)
    bases = partition.ledger.segments.base_offsets
    assert bases[0] > 0
    assert indexed(partition) == list(bases)
    partition.ledger.attachments.write(f"{99:020d}.txnindex", b"")
    partition.crash()
    assert indexed(partition) == list(bases)


def indexed(partition: SteppedPartition) -> list[int]:
    return snapshots_of(partition, ".txnindex")
