"""Partitions whose newest batches are in a bucket that does not answer: opened once it does.

A node that is to lead a partition reads its newest batches first. If only the bucket has them, and
does not answer, clients of that partition are told to try again, as during any opening. Clients of
other partitions are served meanwhile. The batches of coordinators never move to the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import LogKey, StoreUnavailable, Wanted
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.topic import in_parts
from magnetar.storage.topics import Topics

#: The time between two questions to a bucket that does not answer. A question takes 16 seconds, or
#: 25 where the bucket sends some of the answer.
_INTERVAL_S = 5.0
#: Partitions that one step looks at: about a millisecond.
_LOOKED_AT_TOGETHER = 2_048

_log = get_logger("objects")


class LateOpenings:
    """Opens the partitions that one node leads and could not open yet."""

    def __init__(
        self, topics: Topics, store: BulkStore, fail: Callable[[BaseException], None]
    ) -> None:
        self._topics = topics
        self._store = store
        self._background = Background(fail)
        self._is_logged = False
        self._looks = count()

    def start(self) -> None:
        """Look from now on."""
        self._background.start(self._look_periodically())

    async def stop(self) -> None:
        """Look no more."""
        await self._background.stop()

    async def _look_periodically(self) -> None:
        while True:
            # If the database is away, other parts log that. The next look asks again.
            with suppress(CatalogUnavailable, StoreUnavailable):
                await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """Open what can be opened by now. Raises CatalogUnavailable, StoreUnavailable."""
        late, reason = await self._late(), ""
        if late:
            # Each look asks for another partition: one object alone may be out of reach.
            first = next(self._looks) % len(late)
            late = late[first:] + late[:first]
            # Asked here, and not by `refresh`: changes of topics would wait for the answer.
            reason = await self._store.look_again(Wanted(late[0]))
            if not self._store.away:
                await self._topics.refresh(dict.fromkeys(key.topic_id for key in late))
                late = await self._late()
        self._log_waiting(len(late), reason)

    async def _late(self) -> list[LogKey]:
        own_id = self._topics.placement.own_id
        late: list[LogKey] = []
        counted = ((topic, len(topic.partitions)) for topic in self._topics.all())
        for part in in_parts(counted, _LOOKED_AT_TOGETHER):
            late += [
                LogKey(topic.id, index)
                for topic in part
                for index, one in enumerate(topic.partitions)
                if isinstance(one, Elsewhere) and one.node_id == own_id
            ]
            await asyncio.sleep(0)
        return late

    def _log_waiting(self, waiting: int, reason: str) -> None:
        """Log once that partitions wait, and once that none does any more.

        Without a `reason` the partitions are just being opened.
        """
        if waiting and reason and not self._is_logged:
            self._is_logged = True
            _log.warning(
                "partitions cannot be opened: the bucket has their newest batches",
                partitions=waiting,
                reason=reason,
            )
        elif self._is_logged and not waiting:
            self._is_logged = False
            _log.info("all partitions are open again")
