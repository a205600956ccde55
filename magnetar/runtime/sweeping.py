"""The sweeps of a cluster's bucket, by the controller.

A sweep of many objects takes minutes, while batches go on moving (`offloading`).
`logstore.remote.offload` says which objects it deletes. Before a sweep, and once after its start,
the node looks whether the database is older than its bucket (`kept_history`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import CommitsLost, StoreUnavailable
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import Pace, Sweep
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.runtime.kept_history import KeptHistory
from magnetar.storage.database import CatalogUnavailable

_log = get_logger("objects")


class Sweeping:
    """The sweeps of one node, for as long as it is the controller."""

    def __init__(
        self,
        sweep: Sweep,
        kept: KeptHistory,
        pace: Pace,
        clock: Clock,
        is_controller: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._sweep, self._kept, self._pace = sweep, kept, pace
        self._clock = clock
        self._is_controller = is_controller
        self._background = Background(fail)
        until_first_ms = pace.first_sweep_ms - pace.sweep_interval_ms
        #: When the last sweep has ended.
        self._swept_ms = clock.steady_ms() + until_first_ms

    def start(self) -> None:
        """Sweep from here on."""
        self._background.start(self._sweep_periodically())

    async def stop(self) -> None:
        """Sweep no more. What is under way is left to the next sweep."""
        await self._background.stop()

    async def sweep_if_due(self) -> None:
        """Sweep if a sweep is due. Raises StorageFailure; CommitsLost if the database is old."""
        now_ms = self._clock.steady_ms()
        if not self._is_controller() or now_ms - self._swept_ms < self._pace.sweep_interval_ms:
            return
        try:
            await self._kept.renew()
            if count := await self._sweep.sweep():
                _log.info("objects deleted that nothing names any more", objects=count)
        except (ObjectsUnavailable, StoreUnavailable, CatalogUnavailable) as failure:
            _log.warning("objects that nothing names are left for now", reason=str(failure))
        finally:
            self._swept_ms = self._clock.steady_ms()

    async def _sweep_periodically(self) -> None:
        try:
            # Not only at the first sweep: all that is acknowledged until then would be lost too. If
            # the bucket or the database does not answer, that sweep looks again.
            with suppress(ObjectsUnavailable, CatalogUnavailable):
                await self._kept.compare()
            while True:
                await asyncio.sleep(self._pace.interval_s)
                await self.sweep_if_due()
        except CommitsLost:
            raise
        except StorageFailure:
            return  # The node ends because of it.
