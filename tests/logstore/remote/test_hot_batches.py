"""`HotBatches` and `MemoryTail`: what is kept, what it counts as, and what is let go."""

from __future__ import annotations

import random
import sys
import tracemalloc
from bisect import bisect_left

import pytest

from logstore.remote import hot_batches
from logstore.remote.hot_batches import BATCH_BYTES, HotBatches
from logstore.remote.memory_tail import MemoryTail
from wire.records import SimpleRecord, build_batch


def _batch(base_offset: int, count: int = 1) -> bytes:
    return bytes(build_batch([SimpleRecord(None, b"v", 0)] * count, base_offset=base_offset))


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_a_plain_list_holds(seed: int) -> None:
    chance = random.Random(seed)
    hot, held, end = HotBatches(0), list[tuple[int, bytes]](), 0
    for _ in range(300):
        if chance.random() < 0.6 or not held:
            count = chance.randint(1, 3)
            batch = _batch(end, count)
            hot.append(batch, end)
            held.append((end, batch))
            end += count
        else:
            below = chance.choice([*(base for base, _ in held[:9]), end])
            hot.evict_below(below)
            held = [each for each in held if each[0] >= below]
        offset = chance.randint(held[0][0], end - 1) if held else end
        expected = [batch for base, batch in held if base + _count(batch) > offset]
        assert [batch for _, batch in hot.since(offset)] == expected
        assert hot.bytes_between(offset, end) == sum(map(len, expected))
        assert hot.memory_bytes == sum(len(batch) + BATCH_BYTES for _, batch in held)


def _count(batch: bytes) -> int:
    return int.from_bytes(batch[23:27], "big") + 1


def test_what_is_evicted_is_freed_at_once() -> None:
    hot, batches = HotBatches(0), [_batch(offset) for offset in range(10)]
    for offset, batch in enumerate(batches):
        hot.append(batch, offset)
    held = [sys.getrefcount(batch) for batch in batches]
    hot.evict_below(3)
    assert [sys.getrefcount(batch) for batch in batches] == [
        count - (offset < 3) for offset, count in enumerate(held)
    ]


def test_an_eviction_beside_the_end_of_a_replay_takes_no_batch_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard is replayed in a thread, and the event loop evicts the batches of all logs."""
    hot = HotBatches(0)
    for offset in range(20):
        hot.append(_batch(offset), offset)
    hot.pin()
    hot.evict_below(11)
    places: list[int] = []

    def looked_up(offsets: list[int], offset: int, first: int) -> int:
        place = bisect_left(offsets, offset, first)
        places.append(place)
        if len(places) == 1:
            # Here the thread gives way.
            hot.evict_below(13)
        return place

    monkeypatch.setattr(hot_batches, "bisect_left", looked_up)
    hot.unpin()
    first = hot.first_offset
    assert [header.base_offset for header, _ in hot.since(first)] == [*range(first, 20)]
    hot.evict_below(15)
    assert [header.base_offset for header, _ in hot.since(0)] == [*range(15, 20)]


def test_small_batches_count_as_the_memory_that_they_take() -> None:
    tail, hot = MemoryTail(10 * BATCH_BYTES), HotBatches(0)
    for offset in range(100):
        batch = _batch(offset)
        hot.append(batch, offset)
        tail.add(hot, offset + 1, len(batch) + BATCH_BYTES)
        assert hot.memory_bytes <= 10 * BATCH_BYTES
    assert hot.first_offset > 90


def test_nothing_stays_of_what_has_come_and_gone() -> None:
    hot = HotBatches(0)
    tracemalloc.start()
    try:
        for offset in range(20_000):
            hot.append(_batch(offset), offset)
            hot.evict_below(offset - 5)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
