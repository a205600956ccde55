"""The log of one coordinator shard: a partition of `__transaction_state` or `__consumer_offsets`.

Owns nothing but the way in: append now, learn later that it is durable, read everything once at
the start. What the records mean is the coordinators'. A shard's epoch is the leader epoch of its
partition, which rises at every start, so that what an earlier incarnation still writes is
refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from logstore.partition.log import PartitionLog
from wire.records import BatchHeader, Marker, Record, SimpleRecord


class ShardLog:
    """One shard's log. Appends and applies belong in one step, without an await between."""

    __slots__ = ("_is_bounded", "_log", "coordinator_epoch", "partition")

    def __init__(self, log: PartitionLog, *, is_bounded: bool = True) -> None:
        """`is_bounded`: an append above `batch_bytes_max` is MESSAGE_TOO_LARGE."""
        self._log = log
        self._is_bounded = is_bounded
        self.partition: int = log.partition
        self.coordinator_epoch: int = log.leader_epoch

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that is taken: the topic's max.message.bytes."""
        return self._log.config.max_message_bytes

    @property
    def end_offset(self) -> int:
        """The log's end (exclusive), durable or not."""
        return self._log.log_end_offset

    def append(
        self,
        records: Sequence[SimpleRecord],
        now_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        is_transactional: bool = False,
        may_wait: bool = False,
        is_atomic: bool = False,
    ) -> int:
        """Return the log's end offset (exclusive) after appending `records`, also when there are
        none.

        Await `durable` with it before anyone hears of the records. With `may_wait` they are
        durable with the next sync that anybody waits for, or soon. `is_atomic`: as
        `logstore.segments.ledger.Ledger.append`.
        """
        if not records:
            return self._log.log_end_offset
        return self._log.append_records(
            records,
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=is_transactional,
            may_wait=may_wait,
            is_atomic=is_atomic,
            is_bounded=self._is_bounded,
        ).end_offset

    def is_durable(self, end_offset: int) -> bool:
        """Whether everything before `end_offset` (exclusive) survives a power loss."""
        return self._log.high_watermark >= end_offset

    def durable(self, end_offset: int) -> Coroutine[Any, Any, None]:
        """To be awaited: until everything before `end_offset` (exclusive) survives a power loss."""
        return self._log.durable(end_offset)

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        """As `durable`; None where it is already. Who asked first is woken first."""
        return self._log.until_durable(end_offset)

    def replay(self) -> Iterator[tuple[BatchHeader, Record | Marker]]:
        """Yield all that the log holds, in offset order: data records, and transaction markers."""
        return self._log.reader.iterate_records_from(self._log.log_start_offset)
