"""COMPLETE_* records that may not be durable yet: no data of the next transaction goes before them.

Under transaction version 1 an end bumps no epoch, so the next transaction's data looks like that of
the one that ended. Were such data on the disk, and PREPARE_* the last that the log says, a restart
would give it the marker of the transaction before. Under version 2 the markers' epoch tells them
apart. See docs/decisions/0007-adds-are-answered-before-they-are-durable.md.
"""

from __future__ import annotations

from logstore.partition.log import PartitionLog
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Completions:
    """Where the last COMPLETE_* of each transactional id stands, until it is known to be durable.

    In memory only: what a restart finds in the log is durable.
    """

    __slots__ = ("_end_offsets",)

    def __init__(self) -> None:
        self._end_offsets: dict[str, int] = {}

    def note(self, transactional_id: str, end_offset: int) -> None:
        """COMPLETE_* is in the shard's log before `end_offset` (exclusive)."""
        self._end_offsets[transactional_id] = end_offset

    async def durable(self, transactional_id: str, log: PartitionLog) -> None:
        """Return when data of the id's next transaction may be appended."""
        end_offset = self._end_offsets.get(transactional_id)
        if end_offset is None:
            return
        if log.high_watermark < end_offset:
            await log.durable(end_offset)
        if self._end_offsets.get(transactional_id) == end_offset:
            del self._end_offsets[transactional_id]

    def require(self, transactional_id: str, log: PartitionLog) -> None:
        """Raise CONCURRENT_TRANSACTIONS where data may not be appended yet.

        No client meets it that waits for the answer to its AddPartitionsToTxn.
        """
        end_offset = self._end_offsets.get(transactional_id)
        if end_offset is None:
            return
        if log.high_watermark < end_offset:
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{transactional_id}: the end of its last transaction is not durable yet",
            )
        self.forget(transactional_id)

    def forget(self, transactional_id: str) -> None:
        """Nothing is to be waited for: it is durable, or the id has expired."""
        self._end_offsets.pop(transactional_id, None)
