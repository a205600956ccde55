"""Segments of a log in the store, for retention and the cleaner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from logstore.disk.files import Buffer
from logstore.remote.commit_store import Chunk, LogKey, StoredSegment, Swap
from logstore.remote.references import stands_for_lost
from logstore.remote.remote_batches import RemoteBatches
from logstore.remote.segment_list import SegmentList
from logstore.segments.ledger import Runner, SegmentFacts
from logstore.segments.segment_copy import SealedBatches
from wire.records import BatchHeader
from wire.records.header import NO_TIMESTAMP

#: The most bytes of a chunk that the cleaner writes; one batch may be larger.
_CLEANED_CHUNK_BYTES = 256 << 10

#: (swap, aborted index, on_swapped) -> whether it was done. `on_swapped` is called in the step in
#: which the swap is visible.
PerformSwap: TypeAlias = Callable[[Swap, bytes, Callable[[], None]], Awaitable[bool]]


class RemoteSegments:
    """`Segments` of a `RemoteLedger`."""

    def __init__(
        self,
        key: LogKey,
        known: SegmentList,
        batches: RemoteBatches,
        perform_swap: PerformSwap,
    ) -> None:
        self._key = key
        self._known = known
        self._batches = batches
        self.perform_swap = perform_swap

    @property
    def size_bytes(self) -> int:
        return self._known.size_bytes

    @property
    def base_offsets(self) -> Sequence[int]:
        return self._known.base_offsets

    def facts(self) -> Iterator[SegmentFacts]:
        return self._known.facts()

    async def read_max_timestamp(self, base_offset: int) -> None:
        """Does nothing: `facts` knows all of them."""

    async def read_sealed(self, base_offset: int) -> SealedBatches | None:
        found = self._known.sealed_at([base_offset])
        if not found:
            return None
        batches = await self._batches.between(base_offset, found[0].end_offset)
        if self._known.sealed_at([base_offset]) != found:
            return None
        size_bytes = found[0].size_bytes
        if any(stands_for_lost(header) for header, _ in batches):
            # This node may have counted, and written, the segment's bytes before they were lost.
            size_bytes = sum(len(batch) for _, batch in batches)
        return SealedBatches(batches, size_bytes)

    def replacement(self, base_offsets: Sequence[int]) -> _RemoteReplacement | None:
        replaced = self._known.sealed_at(base_offsets)
        if not replaced:
            return None
        return _RemoteReplacement(self._key, replaced, self._known, self._swap)

    async def _swap(self, swap: Swap, aborted: bytes, on_swapped: Callable[[], None]) -> bool:
        # Looked up now: the log may have been closed since the replacement was begun.
        return await self.perform_swap(swap, aborted, on_swapped)


class _RemoteReplacement:
    """One segment that takes the place of several, by a commit."""

    def __init__(
        self,
        key: LogKey,
        replaced: Sequence[StoredSegment],
        known: SegmentList,
        perform_swap: PerformSwap,
    ) -> None:
        self._key = key
        self._replaced = replaced
        self._known = known
        self._perform_swap = perform_swap
        self._chunks: list[Chunk] = []
        self._batches: list[bytes] = []
        self._batches_bytes = 0
        self._base_offset = self._end_offset = 0
        self._size_bytes = 0
        self._max_timestamp = NO_TIMESTAMP
        self._aborted = b""

    @property
    def shared(self) -> None:
        return None

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        if not self._batches:
            self._base_offset = header.base_offset
        self._batches.append(bytes(batch))
        self._batches_bytes += header.size_bytes
        self._end_offset = header.next_offset
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        if self._batches_bytes >= _CLEANED_CHUNK_BYTES:
            self._end_chunk()

    def _end_chunk(self) -> None:
        data = b"".join(self._batches)
        self._chunks.append(Chunk(self._key, self._base_offset, self._end_offset, data))
        self._size_bytes += len(data)
        self._batches, self._batches_bytes = [], 0

    def seal(self, aborted: bytes) -> None:
        if self._batches:
            self._end_chunk()
        self._aborted = aborted

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        bases = [one.base_offset for one in self._replaced]
        if self._known.sealed_at(bases) != self._replaced:
            return False
        segment = StoredSegment(
            self._key,
            bases[0],
            self._replaced[-1].end_offset,
            self._size_bytes,
            self._max_timestamp,
        )
        return await self._perform_swap(Swap(segment, self._chunks), self._aborted, on_swapped)

    def abandon(self) -> None:
        self._chunks, self._batches = [], []
