"""Reading for one Fetch: its partitions in order, within its limits, waiting for enough bytes.

Owns the byte budget and the long poll; knows nothing of sessions and versions. A partition that
fails answers at once, as does one whose data is there; otherwise the fetch sleeps until a log that
it reads advances, and reads again only those that did. Source: KIP-74 (limits in the order of the
request; the first batch is returned whole, whatever its size).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation, Slice
from logstore.sync.durable_end import LedgerClosed
from magnetar.runtime.response_memory import HeldResponse
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import end_of_batches

#: No fetch waits longer, whatever it says: an answer without records is one at any time.
_WAIT_MS_MAX = 300_000


class PartitionRead:
    """One partition of a fetch and what was last read of it."""

    __slots__ = (
        "_end_offset",
        "_is_kept_out",
        "_seen_bytes",
        "diverging",
        "error",
        "fetch_offset",
        "log",
        "max_bytes",
        "result",
        "size_bytes",
    )

    def __init__(self, log: PartitionLog | None, fetch_offset: int, max_bytes: int) -> None:
        self.log = log
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.error: KafkaError | None = None
        self.result: Slice | None = None
        #: (leader epoch, end offset) where the reader's log parts from this one.
        self.diverging: tuple[int, int] | None = None
        self.size_bytes = 0
        self._seen_bytes = 0
        self._is_kept_out = False  # by what was read of others: its first batch alone is too much
        self._end_offset: int | None = None  # of what was read, once somebody asked

    @classmethod
    def refused(cls, error: KafkaError) -> PartitionRead:
        """Return a read that answers `error` and touches no log."""
        read = cls(None, -1, 0)
        read.error = error
        return read

    async def read(
        self, isolation: Isolation, budget_bytes: int, others_bytes: int, held: HeldResponse
    ) -> None:
        """Read whole batches from the fetch offset; the response has `budget_bytes` left.

        At least one where the response has nothing else, no `others_bytes`. `held` is grown only
        for the time of a wait: the caller accounts for what was read.
        """
        if self.log is None or self.error is not None:
            return
        limit = max(min(self.max_bytes, budget_bytes), 0)
        at_least_one = others_bytes == 0
        # Nothing is read where the logs have parted: what the reader holds already is wrong.
        offset = self.fetch_offset if self.diverging is None else self.log.high_watermark
        self._seen_bytes = self.log.ledger.durable_bytes
        try:
            result = self.log.reader.read(offset, limit, isolation, at_least_one=at_least_one)
            if result is None:
                # Many may wait for the disk at once.
                held.resize(others_bytes + limit)
                result = await self.log.reader.read_cold(
                    offset, limit, isolation, at_least_one=at_least_one
                )
        except KafkaError as refusal:
            self._refuse(refusal)
        except LedgerClosed:
            self._refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "deleted meanwhile"))
        else:
            self.result = result
            self.size_bytes = len(result.records)
            self._end_offset = None
            is_left_out = not at_least_one and not result.records
            self._is_kept_out = is_left_out and offset < _bound(result, isolation)

    def _refuse(self, error: KafkaError) -> None:
        self.error = error
        self.result = None
        self.size_bytes = 0

    def is_stale(self, isolation: Isolation) -> bool:
        """Whether a reader could see more, or something else, than what was last read."""
        log, result = self.log, self.result
        if log is None or result is None:
            return False
        if self.is_gone or self.is_trimmed:
            return True
        if isolation is Isolation.READ_COMMITTED:
            return log.last_stable_offset != result.last_stable_offset
        return log.high_watermark != result.high_watermark

    @property
    def is_gone(self) -> bool:
        """Whether the partition was deleted since it was found."""
        return self.log is not None and self.log.is_deleted

    @property
    def is_trimmed(self) -> bool:
        """Whether the log's start moved since the last read: the fetch offset may be below it."""
        log, result = self.log, self.result
        return (
            log is not None
            and result is not None
            and log.log_start_offset != result.log_start_offset
        )

    def is_cut_short(self, isolation: Isolation) -> bool:
        """Whether what was read ends before the bound: the limits let no more through."""
        result = self.result
        if result is None or not self.size_bytes:
            return result is not None and self._is_kept_out
        if self._end_offset is None:
            self._end_offset = end_of_batches(result.records)
        return self._end_offset < _bound(result, isolation)

    def growth_bytes(self) -> int:
        """Return what became durable, so visible, since the last read.

        Not what was appended: that is there before a reader can see it.
        """
        return 0 if self.log is None else self.log.ledger.durable_bytes - self._seen_bytes


def _bound(result: Slice, isolation: Isolation) -> int:
    is_committed = isolation is Isolation.READ_COMMITTED
    return result.last_stable_offset if is_committed else result.high_watermark


class LongPoll:
    """Subscribes to logs while in its `with` block; `advanced` is set when one of them moved."""

    def __init__(self, reads: Sequence[PartitionRead]) -> None:
        self.advanced = asyncio.Event()
        self._logs = [read.log for read in reads if read.log is not None]

    def __enter__(self) -> LongPoll:
        for log in self._logs:
            log.reader.subscribe(self.advanced.set)
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            log.reader.unsubscribe(self.advanced.set)


class Fetch:
    """One fetch over `reads`, in their order: `max_bytes` in all, `min_bytes` or `max_wait_ms`.

    `min_bytes` beyond `max_bytes` counts as that: no wait could bring more.
    """

    def __init__(
        self,
        reads: Sequence[PartitionRead],
        isolation: Isolation,
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        held: HeldResponse,
    ) -> None:
        """`held` accounts for what is read; whoever sends it ends that."""
        self._reads = reads
        self._isolation = isolation
        self._min_bytes = min(min_bytes, max_bytes)
        self._max_bytes = max_bytes
        self._max_wait_ms = min(max_wait_ms, _WAIT_MS_MAX)
        self._held = held
        self._size_bytes = 0

    async def perform(self) -> None:
        """Fill every read's `result` or `error`."""
        await self._read(self._reads)
        if self._is_answerable() or self._max_wait_ms <= 0:
            return
        with LongPoll(self._reads) as poll:
            try:
                async with asyncio.timeout(self._max_wait_ms / 1000):
                    while not self._is_answerable():
                        await self._read_advanced(poll)
            except TimeoutError:
                # Less than asked for, but all that there is by now.
                await self._read([read for read in self._reads if read.is_stale(self._isolation)])

    def _is_answerable(self) -> bool:
        if self._size_bytes >= self._min_bytes or not self._reads:
            return True
        return any(
            read.error is not None
            or read.diverging is not None
            or read.is_cut_short(self._isolation)
            for read in self._reads
        )

    async def _read_advanced(self, poll: LongPoll) -> None:
        """Sleep until enough may have arrived, then read what moved.

        Under read_committed a moved stable offset may uncover any amount. Otherwise nothing is read
        before the logs grew by the missing bytes: a large `min_bytes` must not read every batch
        again whenever a small one arrives.
        """
        stale = [read for read in self._reads if read.is_stale(self._isolation)]
        missing = self._min_bytes - self._size_bytes
        if stale and (
            self._isolation is Isolation.READ_COMMITTED
            or any(read.is_gone or read.is_trimmed for read in stale)
            or sum(read.growth_bytes() for read in self._reads) >= missing
        ):
            await self._read(stale)
            return
        poll.advanced.clear()
        await poll.advanced.wait()

    async def _read(self, reads: Sequence[PartitionRead]) -> None:
        for read in reads:
            others = self._size_bytes - read.size_bytes
            budget = max(min(self._max_bytes - others, self._held.room_bytes(others)), 0)
            await read.read(self._isolation, budget, others, self._held)
            self._size_bytes = others + read.size_bytes
            if self._size_bytes != self._held.size_bytes:
                self._held.resize(self._size_bytes)
