"""What lies in a partition, batch by batch: the view in which two brokers are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka.record.memory_records import MemoryRecords

from compat_tests.raw import Connection


class BatchSeen(NamedTuple):
    """A batch without what differs between any two runs (ids, times, CRC)."""

    base_offset: int
    last_offset: int
    is_transactional: bool
    is_control: bool
    producer_epoch: int
    base_sequence: int
    values: tuple[bytes, ...]


class Layout(NamedTuple):
    """A partition as both isolation levels see it."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    batches: tuple[BatchSeen, ...]
    aborted_first_offsets: tuple[int, ...]


def layout(bootstrap: str, topic: str) -> Layout:
    """Fetch the whole of partition 0 and describe it."""
    with Connection(bootstrap) as connection:
        batches = tuple(_walk(connection, topic))
        committed = connection.fetch(topic, 0, isolation=1)
        assert committed.error_code == 0, committed.error_code
        uncommitted = connection.fetch(topic, 0)
    assert not uncommitted.aborted_transactions, "an aborted list under read_uncommitted"
    aborted = sorted(each.first_offset for each in committed.aborted_transactions or ())
    return Layout(
        committed.log_start_offset,
        committed.high_watermark,
        committed.last_stable_offset,
        batches,
        tuple(aborted),
    )


def _walk(connection: Connection, topic: str) -> Iterator[BatchSeen]:
    offset = 0
    while True:
        partition = connection.fetch(topic, offset)
        assert partition.error_code == 0, partition.error_code
        if offset >= partition.high_watermark:
            return
        records = MemoryRecords(bytes(partition.records))
        while (found := records.next_batch()) is not None:
            yield _seen(found)
            offset = found.next_offset


def _seen(found: Any) -> BatchSeen:
    values = tuple(record.value or b"" for record in found)
    return BatchSeen(
        base_offset=found.base_offset,
        last_offset=found.last_offset,
        is_transactional=found.is_transactional,
        is_control=found.is_control_batch,
        producer_epoch=found.producer_epoch,
        base_sequence=found.base_sequence,
        values=values,
    )
