"""Reads of batches that only the store has. Their number is bounded; further ones are refused."""

from __future__ import annotations

from collections.abc import Sequence

from logstore.remote.commit_store import Chunk, LogKey, StoredLogs, StoreUnavailable
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Reads that wait or are under way, over all logs of a node. Each client has one at a time.
READS_MAX = 1000


class StoreReads:
    """The reads of one node."""

    def __init__(self, store: StoredLogs) -> None:
        self._store = store
        #: The reads that wait or are under way.
        self.count = 0

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
