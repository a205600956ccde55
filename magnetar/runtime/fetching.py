"""Reading for one Fetch: its partitions in order, within its limits, waiting for enough bytes.

Owns the byte budget and the long poll; knows nothing of sessions and versions. A fetch answers at
once if a partition fails or enough data is there. Otherwise the fetch sleeps until one of its logs
advances, and reads only those that did. Source: KIP-74 (limits in the order of the request; the
first batch is returned whole, whatever its size).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation, Slice
from logstore.sync.group_commit import LedgerClosed
from magnetar.runtime.response_memory import HeldResponse
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import end_of_batches

#: No fetch waits longer, whatever it asks for: a response without records is valid at any time.
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
        #: Whether the response is so full that not even this partition's first batch fits.
        self._is_kept_out = False
        #: The end of what was read, computed when it is first asked for.
        self._end_offset: int | None = None

    @classmethod
    def refused(cls, error: KafkaError) -> PartitionRead:
        """Return a read that answers `error` and touches no log."""
        read = cls(None, -1, 0)
        read.error = error
        return read

    def read_now(self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool) -> bool:
        """Read whole batches from the fetch offset; return False if that would wait for the disk.

        At most `limit_bytes`, but with `at_least_one` the first batch whole.
        """
        log = self.log
        if log is None or self.error is not None:
            return True
        # Nothing is read where the logs have parted: what the reader holds already is wrong.
        offset = self.fetch_offset if self.diverging is None else log.reader.high_watermark
        # Before the read: what becomes durable during it counts as growth, and is looked at again.
        self._seen_bytes = log.ledger.durable_bytes
        try:
            result = log.reader.read(offset, limit_bytes, isolation, at_least_one=at_least_one)
        except KafkaError as refusal:
            self._refuse(refusal)
            return True
        if result is None:
            return False
        self._take(result, offset, isolation, at_least_one=at_least_one)
        return True

    async def read_cold(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool
    ) -> None:
        """Do as `read_now`, waiting for the disk in a thread."""
        assert self.log is not None, "a refused read waits for no disk"
        offset, reader = self.fetch_offset, self.log.reader
        try:
            result = await reader.read_cold(
                offset, limit_bytes, isolation, at_least_one=at_least_one
            )
        except KafkaError as refusal:
            self._refuse(refusal)
        except LedgerClosed:
            self._refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "deleted meanwhile"))
        else:
            self._take(result, offset, isolation, at_least_one=at_least_one)

    def _take(
        self, result: Slice, offset: int, isolation: Isolation, *, at_least_one: bool
    ) -> None:
        self.result = result
        self.size_bytes = len(result.records)
        self._end_offset = None
        is_left_out = not at_least_one and not self.size_bytes
        self._is_kept_out = is_left_out and offset < result.bound(isolation)

    def _refuse(self, error: KafkaError) -> None:
        self.error = error
        self.result = None
        self.size_bytes = 0

    def is_stale(self, isolation: Isolation) -> bool:
        """Whether a reader could see more, or something else, than what was last read."""
        log, result = self.log, self.result
        if log is None or result is None:
            return False
        # Then the next read refuses, which the client must learn at once.
        if self.is_gone or self.is_trimmed:
            return True
        return log.reader.bound(isolation) != result.bound(isolation)

    @property
    def is_gone(self) -> bool:
        """Whether the partition was deleted since it was found."""
        return self.log is not None and self.log.reader.is_deleted

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
        return self._end_offset < result.bound(isolation)

    def growth_bytes(self) -> int:
        """Return the bytes that became durable, so visible, since the last read.

        Not the bytes appended: they are there before a reader can see them.
        """
        return 0 if self.log is None else self.log.ledger.durable_bytes - self._seen_bytes


class LongPoll:
    """Subscribes to logs while in its `with` block; `advanced` is set when one of them moved."""

    def __init__(self, reads: Sequence[PartitionRead]) -> None:
        self.advanced = asyncio.Event()
        self._readers = [read.log.reader for read in reads if read.log is not None]

    def __enter__(self) -> LongPoll:
        for reader in self._readers:
            reader.subscribe(self.advanced.set)
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.unsubscribe(self.advanced.set)


class Fetch:
    """One fetch over `reads`, in their order: `max_bytes` in all, `min_bytes` or `max_wait_ms`.

    A `min_bytes` beyond `max_bytes` counts as `max_bytes`: no wait could bring more.
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
        """`held` accounts for what is read, until the connection has sent the response."""
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
                # Less than asked for, but everything that is there by now.
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

        Under read_committed a moved stable offset may uncover any amount of data. Otherwise nothing
        is read before the logs have grown by the missing bytes: a fetch with a large `min_bytes`
        must not read every batch again whenever a small one arrives.
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
        # No await since the look at the logs: no advance is missed.
        poll.advanced.clear()
        await poll.advanced.wait()

    async def _read(self, reads: Sequence[PartitionRead]) -> None:
        isolation, held = self._isolation, self._held
        for read in reads:
            others_bytes = self._size_bytes - read.size_bytes
            room_bytes = min(self._max_bytes - others_bytes, held.room_bytes(others_bytes))
            limit_bytes = max(min(read.max_bytes, room_bytes), 0)
            # KIP-74: a first batch above the limits is returned whole, or its reader would never
            # pass it.
            at_least_one = others_bytes == 0
            # A hot read is a plain call: a coroutine for each of a thousand partitions would cost
            # more than the read.
            if not read.read_now(isolation, limit_bytes, at_least_one=at_least_one):
                # Many may wait for the disk at once: account for what each of them may bring.
                held.resize(others_bytes + limit_bytes)
                await read.read_cold(isolation, limit_bytes, at_least_one=at_least_one)
            self._size_bytes = others_bytes + read.size_bytes
            if self._size_bytes != held.size_bytes:
                held.resize(self._size_bytes)
