"""Reads of batches that only the store has. Their number is bounded; further ones are refused.

A fetch does not wait for a slow store: the read goes on without it, and the next fetch finds what
came. So other partitions of the same fetch are answered meanwhile. Source: KIP-405, where the wait
is `remote.fetch.max.wait.ms`; there what comes late is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, NamedTuple

from logstore.remote.commit_store import Chunk, LogKey, StoredLogs, StoreUnavailable
from logstore.segments.ledger import NotReadYet
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Reads that wait or are under way, over all logs of a node. Each client has few at a time.
READS_MAX = 1000
#: How long a fetch waits for the store.
_WAIT_S = 0.5
#: How long a read is kept for the next fetch, from the end of the last one's wait. A client that is
#: slow with other partitions' records asks again after seconds.
_KEPT_S = 60.0
#: What reads that go on without a fetch, or are kept, may bring. Beyond that, fetches wait for the
#: store.
_KEPT_BYTES_MAX = 64 << 20
#: How much more than its `max_bytes` a read may bring: the store has chunks.
_CHUNK_BYTES = 1 << 20


class _Kept(NamedTuple):
    """What is known of a read for which no fetch waits."""

    place: Hashable
    #: How much it may bring.
    size_bytes: int
    forgetting: asyncio.TimerHandle


class StoreReads:
    """The reads of one node."""

    def __init__(self, store: StoredLogs) -> None:
        self._store = store
        #: The reads that wait or are under way.
        self.count = 0
        self._kept: dict[asyncio.Task[Sequence[Chunk]], _Kept] = {}

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        """As `StoredLogs.read`. Raises KAFKA_STORAGE_ERROR, on which clients try again."""
        if self.count >= READS_MAX:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.count} reads wait for the store"
            )
        self.count += 1
        try:
            return await self._store.read(key, offset, max_bytes, end_offset)
        except StoreUnavailable as unavailable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(unavailable)) from unavailable
        finally:
            self.count -= 1

    async def in_time(
        self,
        place: Hashable,
        max_bytes: int,
        begin: Callable[[], Coroutine[Any, Any, Sequence[Chunk]]],
    ) -> Sequence[Chunk]:
        """Return what `begin` reads, or what a read of the same place has brought since.

        Raises NotReadYet if the store is slow. What is read at a place must not change.
        """
        size_bytes = max_bytes + _CHUNK_BYTES
        # Several fetches may have left the same place. The first one's read is taken first.
        reading = next((one for one, kept in self._kept.items() if kept.place == place), None)
        if is_new := reading is None:
            reading = asyncio.create_task(begin())
            reading.add_done_callback(_hear)
        else:
            kept = self._kept.pop(reading)
            kept.forgetting.cancel()
            size_bytes = kept.size_bytes
        try:
            await asyncio.wait((reading,), timeout=_WAIT_S)
            if sum(kept.size_bytes for kept in self._kept.values()) + size_bytes > _KEPT_BYTES_MAX:
                await asyncio.wait((reading,))
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if not reading.done():
            forgetting = asyncio.get_running_loop().call_later(_KEPT_S, self._forget, reading)
            self._kept[reading] = _Kept(place, size_bytes, forgetting)
            raise NotReadYet
        try:
            chunks = reading.result()
        finally:
            del reading  # It may have an error, whose traceback leads here: a cycle.
        if not chunks and not is_new:
            # There was nothing up to the end of that read. Further on there may be something.
            return await self.in_time(place, max_bytes, begin)
        return chunks

    def _forget(self, reading: asyncio.Task[Sequence[Chunk]]) -> None:
        self._kept.pop(reading).forgetting.cancel()
        reading.cancel()

    def close(self) -> None:
        """End the reads for which no fetch waits."""
        for reading in [*self._kept]:
            self._forget(reading)


def _hear(reading: asyncio.Task[Sequence[Chunk]]) -> None:
    """Take note of a failure, which no fetch may ask for."""
    if not reading.cancelled():
        reading.exception()
