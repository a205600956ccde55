"""What is left of deleted topics of a cluster, if a leader died before it deleted its batches.

Each leader deletes the logs that it leads, once it has read that the topic is gone. A leader that
is dead by then deletes nothing, and nothing else names these logs. So the controller looks through
the ids of deleted topics, and deletes what is left of their logs. An id is forgotten if two looks
in a row have found nothing: by the second one, a commit that was under way at the deletion has had
its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import UUID

from logstore.remote.commit_store import StoreUnavailable
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.storage.catalog import Catalog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.hand_over import LEADERSHIP
from magnetar.storage.logs import Logs

#: The time between two looks: longer than any commit takes that was sent before the first one.
INTERVAL_S = 300.0

_log = get_logger("logs")


class Remains:
    """Deletes what is left of deleted topics, while this node is the controller."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Logs,
        is_controller: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._is_controller = is_controller
        self._background = Background(fail)
        #: Deleted topics of which nothing was left at the last look.
        self._empty: set[UUID] = set()

    def start(self) -> None:
        """Look from now on."""
        self._background.start(self._look_periodically())

    async def stop(self) -> None:
        """Look no more."""
        await self._background.stop()

    async def _look_periodically(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._is_controller():
                self._empty.clear()
                continue
            try:
                await self.look()
            except (CatalogUnavailable, StoreUnavailable) as away:
                _log.warning("deleted topics are looked at again later", reason=str(away))

    async def look(self) -> None:
        """Delete what is left of deleted topics. Raises CatalogUnavailable, StoreUnavailable."""
        deleted = await LEADERSHIP.run(self._catalog.deleted_topics)
        if not deleted:
            return
        found = await self._logs.delete_remains(deleted)
        if found:
            _log.info("remains of deleted topics removed", topics=len(found))
        empty = deleted - found
        if gone := empty & self._empty:
            await LEADERSHIP.run(partial(self._catalog.forget_deleted_topics, gone))
        self._empty = empty - gone
