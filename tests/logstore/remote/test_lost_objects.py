"""A log whose newest object is gone for good opens once batches without records stand there."""

from __future__ import annotations

import asyncio

import pytest

from logstore.disk.barriers import at_once
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.snapshot import SUFFIX
from logstore.partition.snapshots import snapshot_offsets
from logstore.remote.commit_store import Changes, Chunk, Commit, Move, Wanted
from logstore.remote.references import without_object
from tests.logstore.remote_stores import KEY, NODE, SteppedStore
from wire.records import SimpleRecord, build_batch
from wire.records.header import crc_ok, iterate_batches

BATCHES = 8


def append(log: PartitionLog, sequence: int) -> None:
    batch = build_batch(
        [SimpleRecord(b"k", bytes(90), 5)] * 2,
        base_offset=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )
    log.append(log.check(batch, 5))


def opened(store: SteppedStore) -> PartitionLog:
    log = PartitionLog("topic", 0, store.load(), store.limits, steady_ms=lambda: 0)
    at_once(log.opening(was_clean=True))
    return log


def filled(store: SteppedStore) -> None:
    """Leave a closed log of BATCHES batches, each in a chunk of its own."""
    log = opened(store)
    for number in range(BATCHES):
        append(log, 2 * number)
        store.executor.run()
    log.close()


def commit(store: SteppedStore, moves: list[Move]) -> None:
    number = store.database.nodes[NODE].number + 1
    assert store.database.commit(NODE, 0, Commit(number, number - 1, Changes(moves=moves)))
    store.reconnect()


def test_what_stands_for_a_lost_object_is_empty_batches_that_end_at_snapshots() -> None:
    data = without_object(1_000, 1_500, [900, 1_000, 1_210, 1_210, 1_500, 2_000])
    batches = [*iterate_batches(data)]
    assert all(crc_ok(batch) for _, batch in batches)
    assert [(one.base_offset, one.next_offset) for one, _ in batches] == [
        (1_000, 1_210),
        (1_210, 1_500),
    ]
    assert {(one.record_count, one.producer_id) for one, _ in batches} == {(0, -1)}


@pytest.mark.parametrize("lost", [[7], [6], [5, 6, 7], [0, 3], [*range(BATCHES)]])
def test_a_log_goes_on_behind_lost_batches_from_its_newest_snapshot(lost: list[int]) -> None:
    """No offset is given out twice. Producers are known as of the newest snapshot, however little
    is left before it, and from what is left behind it."""
    store = SteppedStore(LogConfig(segment_bytes=600))
    filled(store)
    stored = store.database.load(Wanted(KEY, 0))
    chunks, end_offset = stored.chunks, stored.chunks[-1].end_offset
    snapshot = snapshot_offsets(stored.attachments, SUFFIX)[-1]
    assert len(chunks) == BATCHES and end_offset - snapshot == 4, "two batches lie behind it"
    given_up = [
        Move(KEY, base, end, [Chunk(KEY, base, end, without_object(base, end))])
        for _, base, end, _ in (chunks[at] for at in lost)
    ]
    commit(store, given_up)
    # Only what a start reads is in memory: otherwise this raises NotInMemory.
    log = opened(store)
    assert log.high_watermark == log.log_end_offset == end_offset
    left = [chunk.end_offset for at, chunk in enumerate(chunks) if at not in lost]
    assert log.producers[7].last_sequence == max(snapshot, *left, 0) - 1
    append(log, log.producers[7].last_sequence + 1)
    store.executor.run()
    assert log.high_watermark == end_offset + 2


def test_a_snapshot_amid_lost_batches_tells_of_those_before_it() -> None:
    """A log that has moved from node to node has none at the beginning of its active segment."""
    store = SteppedStore(LogConfig())
    log = opened(store)
    for number in range(BATCHES):
        append(log, 2 * number)
        store.executor.run()
        if number < BATCHES - 1:
            at_once(log.securing())
            store.executor.run()
    log.close()
    snapshots = snapshot_offsets(store.database.load(Wanted(KEY)).attachments, SUFFIX)
    assert snapshots == [12, 14]
    data = without_object(0, 16, snapshots)
    commit(store, [Move(KEY, 0, 16, [Chunk(KEY, 0, 16, data)])])
    log = opened(store)
    assert log.high_watermark == 16 and log.producers[7].last_sequence == 13


@pytest.mark.parametrize("given_up", [True, False])
def test_a_segment_of_given_up_batches_is_smaller_than_a_living_leader_knows(
    given_up: bool,
) -> None:
    """Else the cleaner takes it for damaged, for good where the leader has ended it since. What is
    not there for another reason is damage."""
    store = SteppedStore(LogConfig(segment_bytes=600))
    filled(store)
    log = opened(store)
    (segment, *_), chunks = (
        store.database.load(Wanted(KEY)).segments,
        store.database._logs[KEY].chunks,
    )
    assert segment.base_offset == 0 and segment.end_offset == 4
    data = without_object(2, 4) if given_up else b""
    chunks[1] = chunks[1]._replace(data=data)
    source = asyncio.run(log.ledger.segments.read_sealed(0))
    assert source is not None
    size_bytes = sum(len(batch) for _, batch in source.batches())
    assert size_bytes < segment.size_bytes
    assert source.size_bytes == (size_bytes if given_up else segment.size_bytes)
