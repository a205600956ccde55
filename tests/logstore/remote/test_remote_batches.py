"""Reads of a log that is partly in memory, while batches leave memory."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from logstore.remote.commit_store import Chunk, LogKey
from logstore.remote.hot_batches import HotBatches
from logstore.remote.remote_batches import RemoteBatches
from logstore.remote.segment_list import SegmentList
from wire.records import BatchHeader, SimpleRecord, build_batch

KEY = LogKey(UUID(int=1), 0)


def _batch(offset: int) -> bytes:
    return bytes(build_batch([SimpleRecord(None, b"v", 0)], base_offset=offset))


async def test_a_read_behind_what_was_cleaned_misses_nothing_that_leaves_memory() -> None:
    # The cleaner has removed everything below 10.
    hot, stored = HotBatches(10), [_batch(offset) for offset in range(10, 20)]
    for offset, batch in enumerate(stored, 10):
        hot.append(batch, offset)

    async def read(offset: int, max_bytes: int, end_offset: int) -> Sequence[Chunk]:
        found = [
            Chunk(KEY, at, at + 1, batch)
            for at, batch in enumerate(stored, 10)
            if offset <= at < end_offset
        ]
        # Meanwhile the batches of other logs need the room.
        hot.evict_below(15)
        return found

    batches = RemoteBatches(hot, SegmentList(KEY), read, read)
    found = await batches.read_cold(3, 1_000, 20)
    assert BatchHeader.parse(found).base_offset == 10
