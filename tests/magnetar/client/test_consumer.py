"""What a reader yields of a log with aborted transactions, and of a damaged one."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.client import ClientError
from magnetar.client.consumer import Reader
from magnetar.client.partitions import READ_COMMITTED, READ_UNCOMMITTED
from wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from wire.records import SimpleRecord, build_batch, build_marker


class OneAnswer:
    """A client whose one fetch is answered with this partition."""

    def __init__(self, partition: PartitionData) -> None:
        self._partition = partition

    def call(self, *_: object, **__: object) -> FetchResponse:
        topic = FetchableTopicResponse(topic="a", partitions=[self._partition])
        return FetchResponse(responses=[topic])


def data(offset: int, *values: bytes, producer_id: int = -1) -> bytearray:
    return build_batch(
        [SimpleRecord(None, value, 0) for value in values],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    return build_marker(
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=commit,
        timestamp_ms=0,
    )


LOG = b"".join(
    [
        data(0, b"plain"),
        data(1, b"aborted", b"aborted too", producer_id=1),
        data(3, b"committed", producer_id=2),
        data(4, b"plain between"),
        marker(5, 1, commit=False),
        data(6, b"committed later", producer_id=1),
        marker(7, 2, commit=True),
        marker(8, 1, commit=True),
        data(9, b"aborted again", producer_id=1),
        marker(10, 1, commit=False),
    ]
)
ABORTED = [
    AbortedTransaction(producer_id=1, first_offset=9),
    AbortedTransaction(producer_id=1, first_offset=1),
]


def read(isolation: int, records: bytes, position: int = 0) -> tuple[list[bytes | None], Reader]:
    partition = PartitionData(
        partition_index=0,
        high_watermark=11,
        last_stable_offset=11,
        aborted_transactions=ABORTED if isolation == READ_COMMITTED else None,
        records=records,
    )
    client: Any = OneAnswer(partition)
    reader = Reader(client, {("a", 0): 1}, {("a", 0): position}, isolation)
    return [fetched.record.value for fetched in reader.fetch()], reader


def test_a_committed_reader_is_shown_nothing_aborted() -> None:
    seen, reader = read(READ_COMMITTED, LOG)
    assert seen == [b"plain", b"committed", b"plain between", b"committed later"]
    assert reader.positions == {("a", 0): 11}
    assert reader.is_at_end


def test_an_uncommitted_reader_is_shown_everything_but_markers() -> None:
    seen, _ = read(READ_UNCOMMITTED, LOG)
    assert seen is not None and len(seen) == 7


def test_reading_begins_inside_a_batch_and_ends_before_half_of_one() -> None:
    seen, reader = read(READ_UNCOMMITTED, LOG[: len(data(0, b"plain")) + 100 + 61], position=2)
    assert seen == [b"aborted too"]
    assert reader.positions == {("a", 0): 3}
    assert not reader.is_at_end


def test_a_damaged_batch_is_named_with_the_way_round_it() -> None:
    damaged = bytearray(LOG)
    damaged[len(data(0, b"plain")) - 1] ^= 1
    with pytest.raises(ClientError, match="a-0 is damaged at offset 0: .* Offset 1 begins"):
        read(READ_UNCOMMITTED, bytes(damaged))
