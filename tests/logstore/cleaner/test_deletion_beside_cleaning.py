"""Records are deleted while the cleaner is at the segment that has them."""

from __future__ import annotations

from itertools import count

import pytest

from logstore.partition.log_config import LogConfig
from tests.logstore.compaction import clean
from tests.logstore.partitions import SteppedPartition, delete_records

CONFIG = LogConfig(cleanup_policy=frozenset({"compact", "delete"}), delete_retention_ms=1_000)


@pytest.mark.parametrize("pauses", range(0, 60, 3))
def test_a_deleted_abort_does_not_come_back_with_the_cleaned_segment(pauses: int) -> None:
    partition = SteppedPartition(CONFIG, segment_bytes=1_000)
    for producer_id in range(1, 4):
        partition.append(b"v", producer_id=producer_id, epoch=0, sequence=0, transactional=True)
        partition.end(producer_id, commit=False)
    while len(partition.ledger.segments.base_offsets) < 3:
        partition.append(b"v" * 20)
    partition.settle()
    log = partition.log

    before = count()

    def delete(_size_bytes: int) -> None:
        if next(before) == pauses:
            delete_records(log, 2)

    assert clean(log, partition.now_ms, partition.settle, pause=delete) is not None
    assert log.log_start_offset == 2
    assert [entry.last_offset for entry in log.transactions.aborted] == [3, 5]
