"""The batches of one log that are in memory: all from some offset on, up to the log's end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from wire.records import BatchHeader

#: What a batch takes in memory beside its own bytes: the object that has them, its offset, places
#: in lists, and its entry in the account of all logs. 225 bytes were measured for small batches.
BATCH_BYTES = 256


class NotInMemory(Exception):
    """A call that does not wait needs batches from `offset` on, which are in the store alone."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the batch at offset {offset} is in the store alone")
        self.offset = offset


class HotBatches:
    """The batches in memory, found by bisection."""

    def __init__(self, first_offset: int) -> None:
        #: Every batch of the log that ends above this offset is here.
        self.first_offset = first_offset
        #: Batches and their base offsets. Those before `_first` are forgotten: to take the first
        #: entry out of a long list is to move all others, so it is done for many at once.
        self._batches: list[bytes] = []
        self._offsets: list[int] = []
        self._first = 0
        #: Whether evictions wait for `unpin`.
        self.is_pinned = False
        self._evicted_below = first_offset  # now, or at `unpin`

    def append(self, batch: bytes, base_offset: int) -> None:
        """Add the log's next batch."""
        self._batches.append(batch)
        self._offsets.append(base_offset)

    def pin(self) -> None:
        """Evict nothing until `unpin`: what was loaded is about to be read."""
        self.is_pinned = True

    def unpin(self) -> None:
        """Carry out the evictions that have waited since `pin`."""
        if self.is_pinned:
            # First: a replay ends in a thread, and until then the event loop evicts nothing here.
            self.forget_below(self._evicted_below)
            self.is_pinned = False

    def evict_below(self, offset: int) -> None:
        """Forget the batches that begin below `offset`, a batch's bound: now, or at `unpin`."""
        self._evicted_below = max(self._evicted_below, offset)
        if not self.is_pinned:
            self.forget_below(offset)

    def forget_below(self, offset: int) -> None:
        """Forget the batches that begin below `offset`, a batch's bound: the store has them, or
        they are gone from the log."""
        first, keep = self._first, bisect_left(self._offsets, offset, self._first)
        if 2 * keep > len(self._offsets):
            del self._batches[:keep], self._offsets[:keep]
            self._first = 0
        else:
            self._batches[first:keep] = [b""] * (keep - first)
            self._first = keep
        self.first_offset = max(self.first_offset, offset)

    def since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield batches from the one containing `offset` on, or from the next one after a gap."""
        batch_index = self._index_at(offset)
        while batch_index < len(self._batches):
            batch = self._batches[batch_index]
            header = BatchHeader.parse(batch)
            if header.next_offset > offset:
                yield header, batch
            batch_index += 1

    @property
    def memory_bytes(self) -> int:
        """How much memory the batches take."""
        batches = self._batches[self._first :]
        return sum(map(len, batches)) + BATCH_BYTES * len(batches)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Return the bytes of the batches in [offset, end_offset)."""
        first = self._index_at(offset)
        return sum(map(len, self._batches[first : bisect_left(self._offsets, end_offset)]))

    def _index_at(self, offset: int) -> int:
        return max(bisect_right(self._offsets, offset, self._first) - 1, self._first)


def batches_of(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the batches of a chunk."""
    position = 0
    while position < len(data):
        header = BatchHeader.parse(data, position)
        end = position + header.size_bytes
        yield header, data[position:end]
        position = end
