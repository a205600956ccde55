"""Reading for one Fetch: its partitions in order, within its limits, waiting for enough bytes.

Owns the byte budget and the long poll; knows nothing of sessions and versions. A fetch is answered
at once if a partition fails or enough data is there. Otherwise the fetch sleeps until its watch
says that logs have moved, counts the bytes that became visible, and reads when they are enough.
Many partitions are read in turns, each partition in one step. Source: KIP-74 (limits in the order
of the request; the first batch is returned whole, whatever its size).
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation, Slice
from logstore.segments.ledger import NotReadYet
from logstore.sync.group_commit import LedgerClosed
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.fetch_watch import FetchWatch, PartitionKey
from magnetar.runtime.response_memory import HeldResponse
from magnetar.runtime.shared_timers import SharedTimers
from magnetar.runtime.turns import Turns
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import Message
from wire.records import whole_batches

#: No fetch waits longer, whatever it asks for: a response without records is valid at any time.
WAIT_MS_MAX = 300_000
#: So many bytes of a response may stay in files until it is sent: what a socket takes at once. It
#: is a step of the event loop that reads into memory what the socket does not take.
IN_FILES_BYTES_MAX = 4 << 20
#: After so long a fetch that has something to answer begins no further read that waits for a disk
#: or a remote store. Kafka's `remote.fetch.max.wait.ms`.
_COLD_S = 0.5


class PartitionRead:
    """One partition of a fetch, and what the last read returned."""

    __slots__ = (
        "diverging",
        "error",
        "fetch_offset",
        "is_kept_out",
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
        #: (leader epoch, end offset) at which the reader's log and this one diverge.
        self.diverging: tuple[int, int] | None = None
        self.size_bytes = 0
        #: Whether the response is so full that not even this partition's first batch fits.
        self.is_kept_out = False

    @classmethod
    def refused(cls, error: KafkaError) -> PartitionRead:
        """Return a read that answers `error` and touches no log."""
        read = cls(None, -1, 0)
        read.refuse(error)
        return read

    def read_now(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool, in_file: bool = False
    ) -> bool:
        """Read whole batches from the fetch offset; return False if that would wait for the disk.

        At most `limit_bytes`, but with `at_least_one` the first batch whole. `in_file`: they may
        stay in their file until they are sent.
        """
        log = self.log
        if log is None or self.error is not None:
            return True
        # Nothing is read where the logs have diverged: the reader has records that are not here.
        offset = self.fetch_offset if self.diverging is None else log.reader.high_watermark
        try:
            result = log.reader.read(
                offset, limit_bytes, isolation, at_least_one=at_least_one, in_file=in_file
            )
        except KafkaError as refusal:
            self.refuse(refusal)
            return True
        if result is None:
            return False
        self._take(result, offset, isolation, at_least_one=at_least_one)
        return True

    async def read_cold(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool
    ) -> None:
        """Do as `read_now`, waiting for the disk in a thread, or a little for a remote store."""
        assert self.log is not None, "a refused read waits for no disk"
        offset, reader = self.fetch_offset, self.log.reader
        try:
            result = await reader.read_cold(
                offset, limit_bytes, isolation, at_least_one=at_least_one
            )
        except KafkaError as refusal:
            self.refuse(refusal)
        except NotReadYet:
            self.read_now(isolation, 0, at_least_one=False)
        except LedgerClosed:
            self.refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "deleted meanwhile"))
        else:
            self._take(result, offset, isolation, at_least_one=at_least_one)

    def _take(
        self, result: Slice, offset: int, isolation: Isolation, *, at_least_one: bool
    ) -> None:
        self.result = result
        self.size_bytes = len(result.records if result.in_file is None else result.in_file)
        is_left_out = not at_least_one and not self.size_bytes
        self.is_kept_out = is_left_out and offset < result.bound(isolation)

    def refuse(self, error: KafkaError) -> None:
        """Answer `error` in place of what was read."""
        # Without the traceback, whose frames refer to the fetch. In such a cycle, all that a
        # request for 100,000 partitions has made would wait for the garbage collector.
        self.error = error.with_traceback(None)
        self.result = None
        self.size_bytes = 0

    def is_cut_short(self, isolation: Isolation) -> bool:
        """Whether what was read ends before the bound: the limits let no more through.

        It is in memory from then on. The fetch may wait for minutes, in which pages leave the page
        cache, and with which it would hold one of few descriptors.
        """
        if self.result is None or not self.size_bytes:
            return self.is_kept_out
        result = self.result = self.result.in_memory()
        try:
            _, end_offset = whole_batches(result.records)
        except WireError:
            return True  # Damaged on the disk: the client finds out, and must not wait.
        return end_offset < result.bound(isolation)

    def unread_bytes(self, isolation: Isolation) -> int:
        """Return the bytes that became visible since the last read, or before the first one.

        `sys.maxsize` where the next read will be refused, which the client must learn at once.
        """
        log = self.log
        if log is None or log.is_gone or self.fetch_offset < log.log_start_offset:
            return sys.maxsize
        result = self.result
        offset = self.fetch_offset if result is None else result.bound(isolation)
        return log.ledger.batches.bytes_between(offset, log.reader.bound(isolation))


class Fetch:
    """One fetch of the partitions of `watch`, in the order in which they are due.

    `max_bytes` in all; `min_bytes`, or what is there at the end of the wait. A `min_bytes` beyond
    `max_bytes` counts as `max_bytes`: no wait could bring more.
    """

    def __init__(
        self,
        watch: FetchWatch,
        find: Callable[[PartitionKey], PartitionRead],
        isolation: Isolation,
        timers: SharedTimers,
        turns: Turns,
        *,
        min_bytes: int,
        max_bytes: int,
        ends_at_s: float,
        held: HeldResponse,
    ) -> None:
        """`find` begins the read of a partition. The wait for `min_bytes` is over at `ends_at_s`,
        in the event loop's time. `held` accounts for what is read, until the connection has sent
        the response."""
        #: The partitions that were read; those that have not moved are left alone.
        self.reads: dict[PartitionKey, PartitionRead] = {}
        self._watch = watch
        self._find = find
        self._isolation = isolation
        self._timers = timers
        self._turns = turns
        self._ends_at_s = ends_at_s
        self._min_bytes = min(min_bytes, max_bytes)
        self._max_bytes = max_bytes
        self._held = held
        self._size_bytes = 0
        #: The partitions that have moved since they were read, with the bytes that became visible.
        self._unread: dict[PartitionKey, int] = {}
        self._unread_bytes = 0
        self._is_complete = self._min_bytes <= 0 or watch.is_empty
        self._gives_way = False
        #: When reads that wait are not begun any more, in the event loop's time.
        self._cold_ends_at_s = math.inf
        watch.take(self)

    @property
    def _is_late(self) -> bool:
        return self._gives_way or asyncio.get_running_loop().time() >= self._ends_at_s

    @property
    def _is_overtaken(self) -> bool:
        """Whether another fetch works with the watch, or the session has ended."""
        return self._watch.owner is not self

    async def perform(self) -> None:
        """Fill every read's `result` or `error`."""
        await self._read(list(self._watch.due))
        while not (self._is_complete or self._is_late or self._is_overtaken):
            await self._sleep()
            await self._count_moved()
            if self._size_bytes + self._unread_bytes >= self._min_bytes:
                await self._read_moved()
        if not self._is_complete and not self._is_overtaken:
            # Less than asked for, but everything that is there by now.
            await self._read_moved()

    def give_way(self) -> None:
        """Wait no longer: a request of the same client waits behind this one."""
        self._gives_way = True
        if self._watch.wake is not None and not self._is_overtaken:
            self._watch.wake()

    def end(self) -> None:
        """Leave the watch, so that the records can be freed."""
        self._watch.end(self)

    async def _sleep(self) -> None:
        """Return when a partition has moved, the time is over, or the fetch is overtaken."""
        if self._watch.moved or self._is_overtaken:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._watch.wake = wake
        self._timers.add(self._ends_at_s, wake)
        try:
            await waiter
        finally:
            self._timers.discard(self._ends_at_s, wake)

    async def _count_moved(self) -> None:
        """Count the bytes that moves have made visible, without reading them.

        A fetch with a large `min_bytes` must not read every batch again whenever a small one
        arrives, or a transaction ends.
        """
        watch = self._watch
        while watch.moved and not self._is_overtaken:
            key = next(iter(watch.moved))
            del watch.moved[key]
            read = self.reads.get(key)
            if read is None:
                read = self.reads[key] = self._find(key)
            unread_bytes = read.unread_bytes(self._isolation)
            self._unread_bytes += unread_bytes - self._unread.get(key, 0)
            self._unread[key] = unread_bytes
            if read.log is not None:
                watch.subscribe(key, read.log.reader)
            if watch.moved and self._turns.is_over():
                await self._turns.give_up()

    async def _read_moved(self) -> None:
        moved, self._unread = list(self._unread), {}
        self._unread_bytes = 0
        await self._read(moved)

    async def _read(self, keys: Iterable[PartitionKey]) -> None:
        isolation, held = self._isolation, self._held
        is_first = True
        for key in keys:
            # Not before the first partition: a short fetch asks for no turn.
            if not is_first and self._turns.is_over():
                await self._turns.give_up()
                if self._is_overtaken:
                    return
            is_first = False
            read = self.reads.get(key)
            if read is None:
                read = self.reads[key] = self._find(key)
            others_bytes = self._size_bytes - read.size_bytes
            room_bytes = min(self._max_bytes - others_bytes, held.room_bytes(others_bytes))
            limit_bytes = max(min(read.max_bytes, room_bytes), 0)
            # KIP-74: a first batch above the limits is returned whole, or its reader would never
            # pass it.
            at_least_one = others_bytes == 0
            # A hot read is a plain call: a coroutine for each of a thousand partitions would cost
            # more than the read.
            in_file = others_bytes + limit_bytes <= IN_FILES_BYTES_MAX
            if not read.read_now(
                isolation, limit_bytes, at_least_one=at_least_one, in_file=in_file
            ):
                if self._may_wait_for_disk(others_bytes):
                    # Many may wait at once: account for what each of them may bring.
                    held.resize(others_bytes + limit_bytes)
                    await read.read_cold(isolation, limit_bytes, at_least_one=at_least_one)
                    if self._is_overtaken:
                        # Without `_watch_on`: the other fetch has settled what it has read.
                        held.resize(others_bytes + read.size_bytes)
                        return
                else:
                    read.read_now(isolation, 0, at_least_one=False)
            self._size_bytes = others_bytes + read.size_bytes
            if self._size_bytes != held.size_bytes:
                held.resize(self._size_bytes)
            self._watch_on(key, read)

    def _may_wait_for_disk(self, others_bytes: int) -> bool:
        """Whether a further partition is read although that waits; else the next fetch reads it."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._cold_ends_at_s:
            self._cold_ends_at_s = min(self._cold_ends_at_s, now_s + _COLD_S)
            return True
        return not (others_bytes or self._is_complete)

    def _watch_on(self, key: PartitionKey, read: PartitionRead) -> None:
        """Hear of the next move of a partition that was just read, in the same step.

        A partition stays due instead if the client must learn of it at once, or if no wait can
        bring more of it.
        """
        log = read.log
        if log is None or read.error is not None or read.diverging is not None:
            self._is_complete = True
        elif not read.size_bytes and not read.is_kept_out:
            self._watch.settle(key, log.reader)
        elif self._size_bytes >= self._min_bytes or read.is_cut_short(self._isolation):
            self._is_complete = True
        else:
            self._watch.subscribe(key, log.reader)


class IdleFetch:
    """A fetch whose partitions have not moved: a waiter, without a task until one of them moves."""

    __slots__ = (
        "__weakref__",
        "_answer_nothing",
        "_ends_at_s",
        "_go_on",
        "_task",
        "_timers",
        "_watch",
        "response",
    )

    def __init__(
        self,
        watch: FetchWatch,
        timers: SharedTimers,
        ends_at_s: float,
        go_on: Callable[[], Coroutine[Any, Any, Message]],
        answer_nothing: Callable[[], Message],
    ) -> None:
        """`go_on` performs the fetch and answers; `answer_nothing` answers that nothing moved."""
        #: None once the wait is over, and so is `_go_on`: both refer back to this object, and the
        #: cycle would not be freed.
        self.response: DelayedResponse | None = DelayedResponse(math.inf, self._make, self._stop)
        self._watch = watch
        self._timers = timers
        self._ends_at_s = ends_at_s
        self._go_on: Callable[[], Coroutine[Any, Any, Message]] | None = go_on
        self._answer_nothing = answer_nothing
        self._task: asyncio.Task[Message] | None = None
        watch.take(self, self._on_moved)
        timers.add(ends_at_s, self.response.end)

    def give_way(self) -> None:
        """As `Fetch.give_way`, of a fetch that has nothing to say."""
        if self.response is not None and self._task is None:
            self._discard_timer()
            self.response.end()

    def _on_moved(self) -> None:
        self._discard_timer()
        assert self._go_on is not None, "a wait that is over hears of no move"
        self._task = asyncio.get_running_loop().create_task(self._go_on())
        self._task.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        if self.response is not None:
            self.response.end()

    def _make(self, is_late: bool) -> Message:
        self.response = self._go_on = None
        if self._task is not None:
            return self._task.result()
        self._watch.end(self)
        return self._answer_nothing()

    def _stop(self) -> None:
        self._watch.end(self)
        self._discard_timer()
        self.response = self._go_on = None
        task, self._task = self._task, None  # Its error leads back to this object, as above.
        if task is not None:
            task.cancel()

    def _discard_timer(self) -> None:
        if self.response is not None:
            self._timers.discard(self._ends_at_s, self.response.end)
