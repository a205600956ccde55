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
#: Reads that go on without a fetch, or are kept. Each may have a MiB or two. Beyond that, fetches
#: wait for the store.
_KEPT_MAX = 32


class _Kept(NamedTuple):
    """A read for which no fetch waits."""

    reading: asyncio.Task[Sequence[Chunk]]
    forgetting: asyncio.TimerHandle


class StoreReads:
    """The reads of one node."""

    def __init__(self, store: StoredLogs) -> None:
        self._store = store
        #: The reads that wait or are under way.
        self.count = 0
        self._kept: dict[Hashable, _Kept] = {}

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
        self, place: Hashable, begin: Callable[[], Coroutine[Any, Any, Sequence[Chunk]]]
    ) -> Sequence[Chunk]:
        """Return what `begin` reads, or what a read of the same place has brought since.

        Raises NotReadYet if the store is slow. What is read at a place must not change.
        """
        kept = self._kept.pop(place, None)
        if kept is None:
            reading = asyncio.create_task(begin())
        else:
            reading = kept.reading
            kept.forgetting.cancel()
        may_keep = len(self._kept) < _KEPT_MAX
        try:
            await asyncio.wait((reading,), timeout=_WAIT_S if may_keep else None)
        finally:
            if not reading.done():
                self._keep(place, reading)
        if not reading.done():
            raise NotReadYet
        return reading.result()

    def _keep(self, place: Hashable, reading: asyncio.Task[Sequence[Chunk]]) -> None:
        self._forget(place)  # Another fetch may have read there, and has left too.
        reading.add_done_callback(_hear)
        forgetting = asyncio.get_running_loop().call_later(_KEPT_S, self._forget, place)
        self._kept[place] = _Kept(reading, forgetting)

    def _forget(self, place: Hashable) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            kept.forgetting.cancel()
            kept.reading.cancel()

    def close(self) -> None:
        """End the reads for which no fetch waits."""
        for place in [*self._kept]:
            self._forget(place)


def _hear(reading: asyncio.Task[Sequence[Chunk]]) -> None:
    """Take note of a failure, which no later fetch may ask for."""
    if not reading.cancelled():
        reading.exception()
