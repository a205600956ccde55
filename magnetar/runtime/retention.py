"""Retention at work: segments that logs need not keep any more are deleted.

All logs are checked every `log.retention.check.interval.ms`, by the rule in
`logstore.partition.retention`. The coordinators' topics are left alone, whatever their configs say:
their state is replayed from their first record.

A check works in slices, so that clients are served in between: a turn of the event loop looks at a
number of partitions, or puts a number of segments aside. A thread reads the facts of a segment that
are not in memory, and deletes the files after `file.delete.delay.ms`. One sync makes the new start
offsets of all partitions of a round durable, before any segment goes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from logstore.partition.log import PartitionLog
from logstore.partition.reader import PartitionGone
from logstore.partition.retention import due_in
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.storage.logs import Logs
from magnetar.storage.topics import Topics
from wire.errors import KafkaError

#: Partitions looked at in one turn of the event loop: a few milliseconds.
_PARTITIONS = 128
#: Most segments of one partition that one round looks at, and deletes.
_SEGMENTS = 512
#: The first check comes so long after the start, as in Kafka, or after a shorter interval.
_FIRST_MS = 30_000

_log = get_logger("retention")


class _Expiring(NamedTuple):
    """A partition with a new start offset, and its size before."""

    log: PartitionLog
    start_offset: int
    segment_count: int
    size_bytes: int


class Retention:
    """The check of all partitions of this broker."""

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
        self._background = Background(fail)

    def start(self) -> None:
        """Check periodically from here on."""
        self._background.start(self._check_periodically())

    def stop(self) -> None:
        """Check no more; the next start finds what is due."""
        self._background.cancel()

    async def check(self) -> None:
        """Delete everything that is due in any partition."""
        topics = self._topics.all()
        # One by one: a list of a hundred thousand logs is the work of many turns.
        logs: Iterable[PartitionLog] = (
            log for topic in topics if not topic.is_internal for log in topic.local
        )
        while True:
            expiring = await self._look_at(logs)
            # A topic deleted meanwhile: a new one of its name must not get its start offset.
            expiring = [each for each in expiring if not each.log.is_gone]
            if not expiring:
                return
            await self._logs.persist_start_offsets(
                [(each.log, each.start_offset) for each in expiring]
            )
            for each in expiring:
                await self._expire(each)
            # One that had more segments than a round takes may have more to give.
            logs = [each.log for each in expiring if each.segment_count > _SEGMENTS]

    async def _look_at(self, logs: Iterable[PartitionLog]) -> list[_Expiring]:
        expiring = []
        for number, log in enumerate(logs, 1):
            try:
                start_offset = await self._due(log)
            except KafkaError:
                continue  # Logged where the read failed. The next check asks again.
            if start_offset > log.log_start_offset:
                count = len(log.ledger.segments.base_offsets)
                expiring.append(_Expiring(log, start_offset, count, log.size_bytes))
            if number % _PARTITIONS == 0:
                await asyncio.sleep(0)
        return expiring

    async def _due(self, log: PartitionLog) -> int:
        while True:
            # Facts come one by one, oldest first: a log of many segments costs no more than a round
            # takes.
            segments = islice(log.ledger.segments.facts(), _SEGMENTS)
            start_offset, unread = due_in(log, segments, self._clock.now_ms())
            if unread is None:
                return start_offset
            await log.ledger.segments.read_max_timestamp(unread)

    async def _expire(self, expiring: _Expiring) -> None:
        log = expiring.log
        log.roll_at(expiring.start_offset)
        await advance(self._logs, log, expiring.start_offset)
        if not log.is_gone:
            _report(expiring)

    async def _check_periodically(self) -> None:
        interval_ms = self._config.log_retention_check_interval_ms
        await asyncio.sleep(min(interval_ms, _FIRST_MS) / 1000)
        while True:
            await self.check()
            await asyncio.sleep(interval_ms / 1000)


async def advance(logs: Logs, log: PartitionLog, start_offset: int) -> None:
    """Advance a log to `start_offset`, which is durable, some segments in each turn of the loop.

    Stops where the partition is deleted. Raises StorageFailure.
    """
    step = logs.trimmed_together
    # Once: a log may have ten thousand, and a step takes eight.
    bases = log.ledger.segments.base_offsets
    for next_start in (*bases[step : bisect_left(bases, start_offset) : step], start_offset):
        with suppress(PartitionGone):
            await log.until_told(next_start)
        if log.is_gone:
            return
        if next_start > log.log_start_offset:
            log.advance_start(next_start)
            await logs.after_trim()


def _report(expiring: _Expiring) -> None:
    log = expiring.log
    _log.info(
        "old segments deleted",
        topic=log.topic,
        partition=log.partition,
        log_start_offset=log.log_start_offset,
        segments_before=expiring.segment_count,
        segments_after=len(log.ledger.segments.base_offsets),
        bytes_before=expiring.size_bytes,
        bytes_after=log.size_bytes,
        retention_ms=log.config.retention_ms,
        retention_bytes=log.config.retention_bytes,
    )
