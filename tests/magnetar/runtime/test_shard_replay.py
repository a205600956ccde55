"""What a replay of a coordinator's shard reads, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from magnetar.runtime.shard import Batch, not_replaced
from wire.errors import WireError
from wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    build_marker,
)


def batch(base_offset: int, keys: Sequence[str], is_transactional: bool = False) -> Batch:
    records = [SimpleRecord(key.encode(), b"value", 1_000) for key in keys]
    producer_id = 7 if is_transactional else -1
    data = build_batch(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=is_transactional,
    )
    return BatchHeader.parse(data), memoryview(bytes(data))


def offsets(batches: Sequence[Batch], stable_offset: int = 1_000) -> list[int]:
    return [header.base_offset for header, _ in not_replaced(batches, stable_offset)]


def test_of_batches_with_the_same_keys_the_last_stays() -> None:
    assert offsets([batch(number, ["a"]) for number in range(100)]) == [99]
    pairs = [batch(2 * number, ["a", "b"]) for number in range(100)]
    assert offsets(pairs) == [198]


def test_a_batch_stays_while_one_of_its_records_is_the_last_of_its_key() -> None:
    first = batch(0, ["a", "b"])
    assert offsets([first, batch(2, ["a"]), batch(3, ["a"])]) == [0, 3]
    assert offsets([first, batch(2, ["a"]), batch(3, ["b"])]) == [2, 3]


def test_a_key_twice_in_a_batch_counts_once() -> None:
    assert offsets([batch(0, ["a", "a"]), batch(2, ["a"])]) == [2]
    assert offsets([batch(0, ["a"]), batch(1, ["a", "a"])]) == [1]


def test_the_order_stays_that_of_the_log() -> None:
    batches = [batch(0, ["a"]), batch(1, ["b"]), batch(2, ["a"]), batch(3, ["c"])]
    assert offsets(batches) == [1, 2, 3]


def test_batches_of_transactions_replace_nothing_and_are_not_replaced() -> None:
    marker = bytes(
        build_marker(
            base_offset=2,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=1,
            commit=False,
            timestamp_ms=1_000,
        )
    )
    batches = [
        batch(0, ["a"]),
        batch(1, ["a"], is_transactional=True),
        (BatchHeader.parse(marker), memoryview(marker)),
        batch(3, ["b"]),
        batch(4, ["a"], is_transactional=True),
    ]
    assert offsets(batches) == [0, 1, 2, 3, 4]
    assert offsets([*batches, batch(5, ["a"])]) == [1, 2, 3, 4, 5]


def test_nothing_is_left_out_where_a_transaction_may_be_open() -> None:
    batches = [batch(number, ["a"]) for number in range(6)]
    assert offsets(batches, stable_offset=3) == [3, 4, 5]
    assert offsets(batches[:4], stable_offset=3) == [3]
    assert offsets(batches, stable_offset=0) == [0, 1, 2, 3, 4, 5]


def test_compressed_batches_stay() -> None:
    record = SimpleRecord(b"a", b"value", 1_000)
    data = bytes(build_batch([record], compression=Compression.GZIP))
    compressed = BatchHeader.parse(data), memoryview(data)
    assert offsets([compressed, batch(1, ["a"])]) == [0, 1]


def test_batches_that_compaction_has_emptied_stay() -> None:
    header, data = batch(0, ["a"])
    empty = header._replace(record_count=0), data[:BATCH_OVERHEAD]
    assert offsets([empty, batch(1, ["a"])]) == [0, 1]


def test_lengths_that_are_a_lie_are_told() -> None:
    header, data = batch(0, ["a"])
    with pytest.raises(WireError):
        offsets([(header._replace(record_count=2), data)])
