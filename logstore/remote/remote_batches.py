"""Reads of a log in the store: the newest batches come from memory, older ones from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from logstore.remote.commit_store import Chunk
from logstore.remote.hot_batches import HotBatches, NotInMemory, batches_of
from logstore.remote.segment_list import SegmentList
from logstore.segments.ledger import TimestampOffset
from logstore.segments.searching import pool_for
from logstore.segments.segment_reads import joined
from logstore.segments.timestamps import first_record_since, latest_record, may_hold_since
from wire.records import BatchHeader
from wire.records.header import NO_TIMESTAMP

#: Bytes of one read of the store where a search goes through a log.
_SCAN_BYTES = 1 << 20

#: (offset, max_bytes, end_offset) -> chunks, as `StoredLogs.read`. Raises KafkaError.
ReadStore: TypeAlias = Callable[[int, int, int], Awaitable[Sequence[Chunk]]]


class RemoteBatches:
    """`Batches` of a `RemoteLedger`."""

    def __init__(
        self,
        hot: HotBatches,
        segments: SegmentList,
        read_store: ReadStore,
        read_in_time: ReadStore,
    ) -> None:
        """`read_in_time` raises NotReadYet, where `read_store` waits for a slow store."""
        self._hot = hot
        self._segments = segments
        self.read_store = read_store
        self.read_in_time = read_in_time

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview | None:
        if offset < self._hot.first_offset:
            return None
        batches = self._hot.since(offset)
        return joined(batches, max_bytes, end_offset, at_least_one=at_least_one)

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        # Anew after each read: more batches may have left memory meanwhile.
        while offset < (cold_end := self._hot.first_offset):
            chunks = await self.read_in_time(offset, max_bytes, min(cold_end, end_offset))
            if chunks:
                batches = _from(chunks, offset)
                return joined(batches, max_bytes, end_offset, at_least_one=at_least_one)
            # The cleaner has removed everything between `offset` and the batches in memory.
            offset = cold_end
        batches = self._hot.since(offset)
        return joined(batches, max_bytes, end_offset, at_least_one=at_least_one)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        if offset >= end_offset:
            return 0
        cold_end = self._hot.first_offset
        if offset >= cold_end:
            return self._hot.bytes_between(offset, end_offset)
        cold = self._segments.bytes_touching(offset, min(cold_end, end_offset))
        return cold + self._hot.bytes_between(cold_end, end_offset)

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """As `Batches.headers`. Raises NotInMemory."""
        self._check_in_memory(from_offset)
        for header, _ in self._hot.since(from_offset):
            yield header

    def iterate(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """As `Batches.iterate`. Raises NotInMemory. Its end unpins the batches that were loaded."""
        self._check_in_memory(from_offset)
        for header, batch in self._hot.since(from_offset):
            yield header, memoryview(batch)
        self._hot.unpin()

    def _check_in_memory(self, offset: int) -> None:
        offset = max(offset, self._segments.base_offsets[0])
        if offset < self._hot.first_offset:
            raise NotInMemory(offset)

    async def offset_for_timestamp(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        for facts in self._segments.facts():
            if (
                facts.end_offset <= start_offset
                or facts.max_timestamp_ms is None
                or facts.max_timestamp_ms < timestamp_ms
            ):
                continue
            begin = max(start_offset, facts.base_offset)
            async for header, batch in self._between(begin, facts.end_offset):
                if not may_hold_since(header, timestamp_ms, start_offset):
                    continue
                # In a thread: the batch may have to be decompressed.
                look = partial(first_record_since, batch, header, timestamp_ms, start_offset)
                found = await pool_for(header).run(look)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    async def max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        largest, of_segment = NO_TIMESTAMP - 1, (0, 0)
        for facts in self._segments.facts():
            begin, end = facts.base_offset, min(facts.end_offset, end_offset)
            if begin >= end or not facts.size_bytes:
                continue
            timestamp_ms = facts.max_timestamp_ms
            if end < facts.end_offset:
                headers = [one async for one, _ in self._between(begin, end)]
                timestamp_ms = max([one.max_timestamp for one in headers], default=None)
            if timestamp_ms is not None and timestamp_ms > largest:
                largest, of_segment = timestamp_ms, (begin, end)
        async for header, batch in self._between(*of_segment):
            if header.max_timestamp == largest:
                return await pool_for(header).run(partial(latest_record, batch, header))
        return None

    async def between(self, offset: int, end_offset: int) -> list[tuple[BatchHeader, bytes]]:
        """Return all batches from the one containing `offset` on that end at or below the end."""
        return [one async for one in self._between(offset, end_offset)]

    async def _between(
        self, offset: int, end_offset: int
    ) -> AsyncIterator[tuple[BatchHeader, bytes]]:
        while offset < end_offset:
            cold_end = min(self._hot.first_offset, end_offset)
            if offset < cold_end:
                chunks = await self.read_store(offset, _SCAN_BYTES, cold_end)
                found = list(_from(chunks, offset))
            else:
                found = list(self._hot.since(offset))
            for header, batch in found:
                if header.next_offset > end_offset:
                    return
                yield header, batch
            if not found and offset >= cold_end:
                return
            # Nothing found: the cleaner has removed everything up to the batches in memory.
            offset = found[-1][0].next_offset if found else cold_end


def _from(chunks: Sequence[Chunk], offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the batches of chunks, from the one that holds `offset` on."""
    for chunk in chunks:
        for header, batch in batches_of(chunk.data):
            if header.next_offset > offset:
                yield header, batch
