"""Older batches move to objects, in a cluster that has a bucket, beside all requests.

Once a second all logs that this node leads are looked at, by the rule of `logstore.remote.offload`.
The coordinators' logs stay in the database. If the bucket does not answer, the log says so once,
the batches stay where they are, and the bucket is asked again later. Not here: the sweep
(`sweeping`).

Logs take turns, one object each, in rounds of a second. A round begins where the one before has
ended. So a log that gets more than the bucket takes, or whose objects are refused, does not keep
other logs from moving.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count

from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import Bulk
from logstore.remote.remote_ledger import RemoteLedger
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.storage.topics import Topics

#: How many logs are looked at in one turn of the event loop: 4 us for each that is not due.
_LOOKS_A_TURN = 256

_log = get_logger("objects")


class Offloading:
    """Moves the batches of one node's logs."""

    def __init__(
        self,
        topics: Topics,
        bulk: Bulk,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._topics = topics
        self._offload, self._pace = bulk.offload, bulk.pace
        self._clock = clock
        self._background = Background(fail)
        #: Whether the last attempt has failed.
        self.is_failing = False
        self._retry_s = self._pace.retry_s[0]
        #: The last log of a round that failed, or ran out of time: the next round begins behind it.
        self._last: PartitionLog | None = None

    def start(self) -> None:
        """Move from here on."""
        self._background.start(self._move_periodically())

    async def stop(self) -> None:
        """Move no more. A sweep finds the object that is under way."""
        await self._background.stop()

    async def _move_periodically(self) -> None:
        is_more = False
        while True:
            pause_s = self._retry_s if self.is_failing else self._pace.interval_s
            await asyncio.sleep(0 if is_more else pause_s)
            is_more = False
            try:
                is_more = await self.move()
            except ObjectsUnavailable as failure:
                self._tell_failure(failure.detail)
            except StoreUnavailable as failure:
                self._tell_failure(str(failure))
            except StorageFailure:
                return  # The node ends because of it.
            else:
                self._tell_success()

    async def move(self) -> bool:
        """Move what is due, for one round at most; return whether more is due.

        Raises ObjectsUnavailable, StoreUnavailable, StorageFailure.
        """
        led = self._led()
        end_ms = self._clock.steady_ms() + 1000 * self._pace.interval_s
        self._offload.forget({_ledger(log) for log in led}.__contains__)
        turns = self._in_turn(led)
        looks = count(1)
        while turns and self._clock.steady_ms() <= end_ms:
            if next(looks) % _LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
            log = turns.popleft()
            self._last = log
            if not log.is_gone and await self._offload.offload(
                _ledger(log), self._clock.steady_ms()
            ):
                await self._offload.reclaim()
                turns.append(log)
        if not turns:
            self._last = None
        # Also if nothing has moved: compaction and deletions remove rows too.
        await self._offload.reclaim()
        return bool(turns)

    def _in_turn(self, led: list[PartitionLog]) -> deque[PartitionLog]:
        """Return the logs that are led here, with the last one of the round before at the end."""
        first = led.index(self._last) + 1 if self._last in led else 0
        return deque(led[first:] + led[:first])

    def _led(self) -> list[PartitionLog]:
        return [log for topic in self._topics.all() if not topic.is_internal for log in topic.local]

    def _tell_failure(self, reason: str) -> None:
        if self.is_failing:
            self._retry_s = min(2 * self._retry_s, self._pace.retry_s[1])
            return
        self.is_failing, self._retry_s = True, self._pace.retry_s[0]
        _log.warning(
            "batches stay in the database: they cannot be moved to the bucket", reason=reason
        )

    def _tell_success(self) -> None:
        if self.is_failing:
            self.is_failing = False
            _log.info("batches move to the bucket again")


def _ledger(log: PartitionLog) -> RemoteLedger:
    ledger = log.ledger
    assert isinstance(ledger, RemoteLedger), "a bucket belongs to a cluster"
    return ledger
