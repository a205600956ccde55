"""Older batches move to objects, in a cluster that has a bucket, beside all requests.

Once a second all logs that this node leads are looked at, by the rule of `logstore.remote.offload`.
The coordinators' logs stay in the database. Not here: the sweep (`sweeping`).

Logs take turns, one object each, in rounds of a second. A round begins where the one before has
ended. So a log that gets more than the bucket takes does not keep other logs from moving.

A log whose move fails is left out for a while, and the others go on. If two logs fail, and none has
moved in between, the bucket or the database is away: the round ends, and the next one comes later.
Batches that cannot move stay in the database, and the log says so once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

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


class _Held(NamedTuple):
    """A log whose last move has failed."""

    until_ms: float
    """When it is tried again."""
    wait_s: float


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
        #: The logs whose last move has failed.
        self._held: dict[PartitionLog, _Held] = {}
        #: The last log whose move has failed, unless another has moved since.
        self._failed: PartitionLog | None = None
        #: How long the node waits because the bucket or the database is away; 0: neither is.
        self._away_s = 0.0
        #: Whether a failure was told of since the last move.
        self._is_told = False
        #: Whether a failure was told of, and not yet that all moves again.
        self._is_troubled = False
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
            await asyncio.sleep(0 if is_more else self._away_s or self._pace.interval_s)
            is_more = False
            try:
                is_more = await self.move()
                self._away_s = 0.0
            except (ObjectsUnavailable, StoreUnavailable) as failure:
                self._away_s = self._longer(self._away_s)
                self._tell(failure)
            except StorageFailure:
                return  # The node ends because of it.

    async def move(self) -> bool:
        """Move what is due, for one round at most; return whether more is due.

        Raises ObjectsUnavailable, StoreUnavailable: not of one log alone. Raises StorageFailure.
        """
        led = self._led()
        end_ms = self._clock.steady_ms() + 1000 * self._pace.interval_s
        self._offload.forget({_ledger(log) for log in led}.__contains__)
        if self._held:
            for log in self._held.keys() - {*led}:
                del self._held[log]
        turns = self._in_turn(led)
        looks = count(1)
        while turns and self._clock.steady_ms() <= end_ms:
            if next(looks) % _LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
            log = turns.popleft()
            self._last = log
            if not log.is_gone and await self._moved(log):
                await self._offload.reclaim()
                turns.append(log)
        if not turns:
            self._last = None
        # Also if nothing has moved: compaction and deletions remove rows too.
        await self._offload.reclaim()
        return bool(turns)

    async def _moved(self, log: PartitionLog) -> bool:
        """Move some batches of a log, unless it is held; return whether more may be due at once.

        Raises as `move`.
        """
        now_ms = self._clock.steady_ms()
        held = self._held.get(log)
        if held is not None and now_ms < held.until_ms:
            return False
        try:
            is_more = await self._offload.offload(_ledger(log), now_ms)
        except (ObjectsUnavailable, StoreUnavailable) as failure:
            self._hold(log, failure)
            if self._failed not in (None, log):
                raise
            self._failed = log
            return False
        if held is not None:
            del self._held[log]
        if is_more:
            self._on_move()
        return is_more

    def _hold(self, log: PartitionLog, failure: ObjectsUnavailable | StoreUnavailable) -> None:
        if (held := self._held.get(log)) is None:
            self._tell(failure, topic=log.topic, partition=log.partition)
        wait_s = self._longer(0.0 if held is None else held.wait_s)
        self._held[log] = _Held(self._clock.steady_ms() + 1000 * wait_s, wait_s)

    def _on_move(self) -> None:
        """Note that something has moved: neither the bucket nor the database is away."""
        self._failed, self._is_told, self._away_s = None, False, 0.0
        if self._is_troubled and not self._held:
            self._is_troubled = False
            _log.info("batches move to the bucket again")

    def _longer(self, wait_s: float) -> float:
        """Return the wait after one more failure."""
        first_s, max_s = self._pace.retry_s
        return min(2 * wait_s or first_s, max_s)

    def _in_turn(self, led: list[PartitionLog]) -> deque[PartitionLog]:
        """Return the logs that are led here, with the last one of the round before at the end.

        After a failure, its whole topic comes at the end: all of it may be refused.
        """
        last = self._last
        if last is None or last not in led:
            return deque(led)
        first = led.index(last) + 1
        if self._failed is not None:
            while first < len(led) and led[first].topic == last.topic:
                first += 1
        return deque(led[first:] + led[:first])

    def _led(self) -> list[PartitionLog]:
        return [log for topic in self._topics.all() if not topic.is_internal for log in topic.local]

    def _tell(self, failure: ObjectsUnavailable | StoreUnavailable, **of_log: str | int) -> None:
        """Tell of a failure, the first one since something has moved."""
        if not self._is_told:
            self._is_told = self._is_troubled = True
            reason = failure.detail if isinstance(failure, ObjectsUnavailable) else str(failure)
            _log.warning(
                "batches stay in the database: they cannot be moved to the bucket",
                reason=reason,
                **of_log,
            )


def _ledger(log: PartitionLog) -> RemoteLedger:
    ledger = log.ledger
    assert isinstance(ledger, RemoteLedger), "a bucket belongs to a cluster"
    return ledger
