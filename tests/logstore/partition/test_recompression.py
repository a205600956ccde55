"""`compression.type` of a topic: what is stored is compressed so, and nothing else changes."""

from __future__ import annotations

import pytest

from logstore.partition.client_batch import ORDINARY, WHOLE, TakesLong, check_batch
from logstore.partition.log_config import LogConfig
from tests.logstore.partitions import SteppedPartition, batch_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused
from wire.records import (
    DECOMPRESSED_BYTES_MAX,
    BatchHeader,
    Compression,
    crc_ok,
    iterate_records,
)
from wire.records.header import pack_batch

VALUES = [b"value %d" % number * 20 for number in range(50)]


def stored(partition: SteppedPartition) -> list[memoryview]:
    return [batch for _, batch in partition.log.ledger.batches.iterate(0)]


@pytest.mark.parametrize("target", Compression)
@pytest.mark.parametrize("sent", Compression)
def test_batches_are_stored_in_the_topics_codec(sent: Compression, target: Compression) -> None:
    partition = SteppedPartition(LogConfig(compression=target))
    batch = batch_of(*VALUES, compression=sent, producer_id=1, epoch=0, sequence=0)
    before = BatchHeader.parse(batch)
    partition.log.append(partition.log.check(batch, partition.now_ms))
    (kept,) = stored(partition)
    header = BatchHeader.parse(kept)
    assert header.compression is target and crc_ok(kept)
    same = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert header._replace(**same) == before._replace(**same)
    assert [record.value for record in iterate_records(kept)] == VALUES
    # A retry is known by its sequence, whatever it is compressed by.
    again = batch_of(*VALUES, compression=sent, producer_id=1, epoch=0, sequence=0)
    assert partition.log.append(partition.log.check(again, partition.now_ms)).is_duplicate


def test_the_level_decides_how_small() -> None:
    sizes = []
    for level in (1, 9):
        partition = SteppedPartition(
            LogConfig(compression=Compression.GZIP, compression_level=level)
        )
        partition.log.append(partition.log.check(batch_of(*VALUES), partition.now_ms))
        sizes.append(partition.log.size_bytes)
    assert sizes[1] < sizes[0]


def test_producer_means_as_it_came() -> None:
    partition = SteppedPartition(LogConfig())
    batch = batch_of(*VALUES, compression=Compression.ZSTD)
    body = bytes(batch[61:])
    partition.log.append(partition.log.check(batch, partition.now_ms))
    assert bytes(stored(partition)[0][61:]) == body


def test_what_inflates_too_far_is_refused() -> None:
    partition = SteppedPartition(LogConfig(compression=Compression.LZ4))
    bomb = batch_of(bytes(DECOMPRESSED_BYTES_MAX + 1), compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as refused:
        partition.log.append(partition.log.check(bomb, partition.now_ms))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert partition.log.log_end_offset == 0


def test_what_grows_too_large_is_refused() -> None:
    partition = SteppedPartition(LogConfig(compression=Compression.NONE, max_message_bytes=10_000))
    with pytest.raises(KafkaError) as refused:
        partition.log.append(
            partition.log.check(
                batch_of(bytes(20_000), compression=Compression.GZIP), partition.now_ms
            )
        )
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_garbage_instead_of_a_stream_is_refused() -> None:
    partition = SteppedPartition(LogConfig(compression=Compression.NONE))
    batch = batch_of(*VALUES, compression=Compression.ZSTD)
    damaged = pack_batch(BatchHeader.parse(batch), bytes(batch[61:-9]) + bytes(9))
    with pytest.raises(KafkaError) as refused:
        partition.log.append(partition.log.check(damaged, partition.now_ms))
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_records_without_a_key_are_named() -> None:
    partition = SteppedPartition(LogConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(RecordsRefused) as refused:
        partition.log.append(partition.log.check(batch_of(b"1", b"2", key=None), partition.now_ms))
    assert [index for index, _ in refused.value.flaws] == [0, 1]
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize("level", [3, 19])
def test_a_slow_level_is_no_ordinary_work(level: int) -> None:
    """A second for a megabyte, for which ordinary batches of other clients do not wait."""
    batch = batch_of(bytes(900_000))
    config = LogConfig(compression=Compression.ZSTD, compression_level=level)
    if level == 19:
        with pytest.raises(TakesLong):
            check_batch(batch, config, 1_000, ORDINARY)
    else:
        check_batch(batch, config, 1_000, ORDINARY)
    check_batch(batch, config, 1_000, WHOLE)
