"""`flush.ms`: records that have been in the page cache for that long are made durable.

Runs only with durability=page-cache, since fsync leaves nothing to flush. It looks at all logs
every `log.flush.scheduler.interval.ms`, which by default is never, as in Kafka. The ledger obeys
`flush.messages`, since it counts records as they are written.
Source: Kafka's LogManager.flushDirtyLogs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from logstore.disk.durability import Durability
from logstore.partition.log import PartitionLog
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.background import Background
from magnetar.storage.topics import Topics

#: How many partitions one turn of the event loop looks at.
_PARTITIONS = 512


class Flushing:
    """The flush of all partitions of this broker."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        config: BrokerConfig,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._config = config
        self._background = Background(fail)
        self._began_ms = clock.steady_ms()
        # Weak: this must not keep a deleted log in memory.
        self._flushed_ms: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()

    def start(self) -> None:
        """Flush periodically from here on."""
        if Durability(self._config.durability) is Durability.PAGE_CACHE:
            self._background.start(self._flush_periodically())

    def stop(self) -> None:
        """Flush no more; the end of the broker makes all logs durable."""
        self._background.cancel()

    async def flush(self) -> int:
        """Flush every log whose time has come; return their number."""
        count = 0
        # One by one: a list of a hundred thousand logs is the work of many turns.
        logs = (log for topic in self._topics.all() for log in topic.local)
        for number, log in enumerate(logs, 1):
            now_ms = self._clock.steady_ms()
            since_ms = now_ms - self._flushed_ms.get(log, self._began_ms)
            if since_ms >= log.config.flush_ms and not log.is_gone and log.ledger.flush():
                self._flushed_ms[log] = now_ms
                count += 1
            if number % _PARTITIONS == 0:
                await asyncio.sleep(0)
        return count

    async def _flush_periodically(self) -> None:
        while True:
            # The setting has no least value: 0 must not keep the event loop busy.
            await asyncio.sleep(max(1, self._config.log_flush_scheduler_interval_ms) / 1000)
            await self.flush()
