"""The snapshots of a log in a shared store: few, however many segments there are."""

from __future__ import annotations

from logstore.remote.commit_store import Wanted
from tests.logstore.remote_stores import KEY, StoredPartition
from wire.records import SimpleRecord, build_batch


def test_a_store_keeps_no_snapshot_for_each_segment() -> None:
    partition = StoredPartition(segment_bytes=200)
    for sequence in range(40):
        batch = build_batch(
            [SimpleRecord(b"k", bytes(90), 5)],
            base_offset=0,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        partition.log.append(partition.log.check(batch, 5))
        partition.executor.run()
    assert len(partition.ledger.segments.base_offsets) == 40
    kept = partition._store.database.load(Wanted(KEY)).attachments
    assert all(name.endswith(".state") for name in kept if name.startswith("0")), [*kept]
    assert len(kept) <= 4
    log = partition.restart()
    assert log.producers[7].last_sequence == 39
