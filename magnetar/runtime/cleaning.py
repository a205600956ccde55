"""Compaction at work: the dirtiest log is cleaned, then the next, while any is dirty enough.

The log store decides which log, how far, and what stays (`logstore.cleaner`). Here: when, where,
and how fast. A process that lasts as long as the run reads and writes a large log, a thread a small
one. The thread works in slices of a fraction of a millisecond and sleeps in between, so that the
event loop never waits long for the interpreter. Both keep to `log.cleaner.io.max.bytes.per.second`.
Every log is looked at again after `log.cleaner.backoff.ms`.

A log that is damaged, that the disk cannot read, or of which another program has deleted a segment
is reported, and left alone from then on. Another error of the disk ends the process, except in a
file that only the cleaner uses so far.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

from logstore.cleaner.plan import Cleanable, cleanable_of, is_dirty_enough, is_overdue
from logstore.cleaner.process import CannotStart, ProcessPasses, WorkerEnded
from logstore.cleaner.run import Cleaned, Cleaning, OffsetMapLimits, Overtaken
from logstore.disk.pools import Pool
from logstore.partition.log import PartitionLog
from logstore.partition.reader import PartitionGone
from logstore.segments.ledger import GONE, UNREADABLE, SegmentFacts, Unreadable
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.storage.logs import Logs
from magnetar.storage.topics import Topics
from wire.errors import KafkaError, WireError
from wire.records.header import NO_TIMESTAMP
from wire.types import INT64_MAX

#: Logs looked at in one turn of the event loop.
_LOGS = 64
#: How long the thread works at a time, and how long it sleeps in between.
_SLICE_S = 0.000_2
_PAUSE_S = 0.000_1
#: No single sleep is longer, so that a stop is noticed.
_SLEEP_MAX_S = 0.1
#: From this size on a log in files has a process for its run, whose start costs 0.2 s of CPU: as
#: much as the thread takes for some 30 MB.
PROCESS_BYTES = 64 << 20

CLEANING = Pool("log-cleaner", 1)

_T = TypeVar("_T")
_log = get_logger("cleaner")


class Stopped(Exception):
    """The broker stops: the cleaner gives up the log under way."""


class Pace:
    """The speed of the cleaner's thread, which calls it often.

    It sleeps, or raises Stopped, or the OSError of a full disk.
    """

    def __init__(self, bytes_per_second: Callable[[], float], has_room: Callable[[], bool]) -> None:
        """`has_room`: whether the disk has room for the cleaner's copies."""
        self._bytes_per_second = bytes_per_second
        self._has_room = has_room
        self._slice_began = 0.0
        self._bytes = 0
        self._bytes_since = 0.0
        self.is_stopped = False

    def __call__(self, size_bytes: int = 0) -> None:
        """Account for bytes read or written; sleep when it is time."""
        self._bytes += size_bytes
        now = time.perf_counter()
        if now - self._slice_began < _SLICE_S:
            return
        if self.is_stopped:
            raise Stopped
        if not self._has_room():
            # What is left is for those that cannot wait.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        time.sleep(_PAUSE_S)
        while (ahead_s := self._ahead_s(time.perf_counter())) > 0 and not self.is_stopped:
            time.sleep(min(ahead_s, _SLEEP_MAX_S))
        self._slice_began = time.perf_counter()

    def _ahead_s(self, now: float) -> float:
        """Return the time by which the work is ahead of its allowed speed."""
        due_s = self._bytes / self._bytes_per_second()
        ahead_s = self._bytes_since + due_s - now
        if ahead_s < -1:
            # Idle time is not saved up: a burst after it would be as fast as the disk.
            self._bytes, self._bytes_since = 0, now
        return ahead_s


class Cleaner:
    """The compaction of all partitions of this broker."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        clock: Clock,
        config: BrokerConfig,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._config = config
        self._pace = Pace(
            lambda: max(config.log_cleaner_io_max_bytes_per_second, 1.0),
            logs.room.has_half_the_reserve,
        )
        self._background = Background(fail)
        #: Damaged logs, which are left alone.
        self.uncleanable: WeakSet[PartitionLog] = WeakSet()
        #: Whether processes can be started here, as far as known.
        self._has_processes = True

    def start(self) -> None:
        """Clean periodically from here on."""
        if self._config.log_cleaner_enable:
            self._background.start(self._clean_periodically())

    async def stop(self) -> None:
        """Clean no more, and give up the log under way."""
        self._pace.is_stopped = True
        await self._background.stop()

    async def clean(self) -> int:
        """Clean logs while any is dirty enough; return the number of runs, failed ones too."""
        runs = 0
        passed_over: set[PartitionLog] = set()
        while (filthiest := await self._filthiest(passed_over)) is not None:
            log, found = filthiest
            if not await self._clean_one(log, found):
                passed_over.add(log)
            runs += 1
        return runs

    async def _filthiest(
        self, passed_over: set[PartitionLog]
    ) -> tuple[PartitionLog, Cleanable] | None:
        """Return the log to clean next: an overdue one, else the one of the highest dirty ratio."""
        best: tuple[tuple[bool, float], PartitionLog, Cleanable] | None = None
        number = 0
        for topic in list(self._topics.all()):
            for log in topic.local:
                number += 1
                if number % _LOGS == 0:
                    await asyncio.sleep(0)
                if not log.config.is_compacted or log in self.uncleanable or log in passed_over:
                    continue
                try:
                    found = await self._cleanable(log)
                    overdue = await self._is_overdue(log, found)
                except (Unreadable, OSError) as error:
                    # One bad sector must not keep the cleaner from all other logs.
                    self._leave_alone("a log that cannot be read", log, error)
                    continue
                except KafkaError:
                    continue  # A store that does not answer now. The next round asks again.
                rank = (overdue, found.dirty_ratio)
                is_due = overdue or is_dirty_enough(found, log.config)
                if is_due and (best is None or rank > best[0]):
                    best = rank, log, found
        return None if best is None else (best[1], best[2])

    async def _cleanable(self, log: PartitionLog) -> Cleanable:
        while not log.is_gone:
            found = cleanable_of(log, self._clock.now_ms())
            if found.unread is None:
                return found
            await log.ledger.segments.read_max_timestamp(found.unread)
        return Cleanable()

    async def _is_overdue(self, log: PartitionLog, found: Cleanable) -> bool:
        """Return whether dirty records have waited for longer than the maximum lag."""
        if not found.dirty_bytes or log.config.max_compaction_lag_ms == INT64_MAX:
            return False
        now_ms = self._clock.now_ms()
        for segment in found.segments:
            # Without a look at the segment, which a store would have to read whole.
            is_timeless = segment.max_timestamp_ms is not None and segment.max_timestamp_ms <= 0
            if segment.end_offset <= found.first_dirty_offset or is_timeless:
                continue
            first_ms = await self._first_timestamp(log, segment)
            # The first batch stands for all behind it, unless its time says nothing: then the first
            # one of the next segment. Kafka takes the earliest of all segments' first ones.
            if 0 < first_ms <= now_ms:
                return is_overdue(log.config, first_ms, now_ms)
        return False

    async def _first_timestamp(self, log: PartitionLog, segment: SegmentFacts) -> int:
        """Return the time of the segment's first batch, -1 if there is none."""
        source = await log.ledger.segments.read_sealed(segment.base_offset)
        if source is None:
            return NO_TIMESTAMP
        try:
            first = await self._in_thread(lambda: next(source.batches(), None))
        finally:
            source.close()
        return NO_TIMESTAMP if first is None else first[0].max_timestamp

    async def _clean_one(self, log: PartitionLog, found: Cleanable) -> bool:
        """Clean one log; return whether it may be worth another look at once."""
        config = self._config
        cleaning = Cleaning(
            log,
            found,
            self._clock.now_ms(),
            run=self._in_thread,
            pause=self._pace,
            limits=OffsetMapLimits(
                config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_buffer_load_factor
            ),
            elsewhere=ProcessPasses if self._is_for_a_process(found) else None,
        )
        began = time.perf_counter()
        try:
            cleaned = await cleaning.perform()
        except (Overtaken, PartitionGone):
            # Retention, or a deletion, was faster: the log looks different now.
            return False
        except CannotStart as error:
            self._has_processes = False
            _report("the cleaner has no process from now on", log, error, _log.warning)
            return False
        except (KafkaError, WorkerEnded) as refusal:
            # The store does not answer, or the process was killed: the next look may find more.
            _report("a log was not cleaned yet", log, refusal, _log.warning)
            return False
        except WireError as error:
            self._leave_alone("a damaged log", log, error)
            return False
        except OSError as error:
            if log.is_gone:
                pass  # The files of a deleted log vanish under the cleaner.
            elif error.errno in UNREADABLE | GONE:
                self._leave_alone("a log that cannot be read", log, error)
            else:
                _report("a log could not be cleaned", log, error)
            return False
        if log.is_gone:
            return False
        self._logs.checkpoint_cleaned(log)
        _tell_cleaned(log, cleaned, time.perf_counter() - began)
        return True

    def _is_for_a_process(self, found: Cleanable) -> bool:
        return self._has_processes and found.clean_bytes + found.dirty_bytes >= PROCESS_BYTES

    def _leave_alone(self, what: str, log: PartitionLog, error: Exception) -> None:
        self.uncleanable.add(log)
        _report(f"{what} is not cleaned any more", log, error)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        if self._pace.is_stopped:
            raise Stopped
        # A cancelled caller closes the files that the thread reads, so it waits for the thread,
        # which notices a stop within a slice.
        future = asyncio.ensure_future(CLEANING.run(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise
        finally:
            # The traceback of an error of the work leads here. With the task, which has the error,
            # this frame would be a cycle.
            del future

    async def _clean_periodically(self) -> None:
        from magnetar.linux import wake_on_time

        with suppress(Stopped):
            # Its pauses are shorter than what Linux would add to them.
            await self._in_thread(wake_on_time)
            while True:
                await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
                if self._config.log_cleaner_threads > 0:
                    await self.clean()


def _report(
    event: str, log: PartitionLog, error: Exception, tell: Callable[..., object] = _log.error
) -> None:
    tell(event, topic=log.topic, partition=log.partition, reason=str(error))


def _tell_cleaned(log: PartitionLog, cleaned: Cleaned, took_s: float) -> None:
    _log.info(
        "log cleaned",
        topic=log.topic,
        partition=log.partition,
        first_dirty_offset=cleaned.first_dirty_offset,
        keys=cleaned.keys,
        read_bytes=cleaned.read_bytes,
        written_bytes=cleaned.written_bytes,
        segments_before=cleaned.segments_before,
        segments_after=cleaned.segments_after,
        took_ms=round(1000 * took_s),
    )
