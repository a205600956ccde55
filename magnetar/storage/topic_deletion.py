"""The deletion of topics: first out of the catalog, then out of memory, each in one step.

Owns what is on its way out, and the ids of the topics deleted last: the next deletion lets the
catalog forget them. A crash in between leaves directories, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from magnetar.storage.catalog import Catalog
from magnetar.storage.leaders import Placement
from magnetar.storage.logs import Logs
from magnetar.storage.topic import Topic, free_logs, in_parts
from magnetar.storage.topic_index import TopicIndex
from magnetar.storage.whole_changes import CATALOG, WholeChanges

#: Topics that leave the catalog by one transaction, which locks it and has two seconds.
_REMOVED_TOGETHER = 1_000
#: Partitions that go in one turn of the loop, a few milliseconds.
_PARTITIONS_A_TURN = 256


class TopicDeletion:
    """Lets topics go, for requests and where another node has deleted them."""

    def __init__(
        self,
        index: TopicIndex,
        catalog: Catalog,
        logs: Logs,
        placement: Placement,
        changes: WholeChanges,
    ) -> None:
        self._index = index
        self._catalog = catalog
        self._logs = logs
        self._placement = placement
        self._changes = changes
        #: Ids of topics that may have left the catalog already, but are found still.
        self.leaving: set[UUID] = set()
        #: Ids of the topics deleted last, whose files are durably gone.
        self._gone: list[UUID] = []
        #: Called with each deleted topic, in the step from which on it is not found.
        self.on_deleted: list[Callable[[Topic], None]] = []

    async def perform(self, topics: Iterable[Topic]) -> list[UUID]:
        """Delete topics durably, many by one transaction, while other requests are served.

        Returns the ids of those that no other request has deleted first. Each goes in one step:
        from it on it is not found, and requests that wait for its data are woken.
        """
        return await self._changes.whole(self._perform([topic.id for topic in topics]))

    async def _perform(self, asked: list[UUID]) -> list[UUID]:
        async with self._changes.turn:
            # Another request may have deleted one while this change waited for its turn.
            ids = [topic_id for topic_id in asked if self._index.by_id(topic_id) is not None]
            self.leaving.update(ids)
            try:
                for first in range(0, len(ids), _REMOVED_TOGETHER):
                    part = ids[first : first + _REMOVED_TOGETHER]
                    # It also forgets topics that were deleted earlier: their files are gone.
                    await CATALOG.run(partial(self._catalog.remove_topics, part, self._gone))
                    await self.drop(part)
                    # With several nodes, the files of the others may still be there.
                    self._gone = part if self._placement.is_alone else []
            finally:
                self.leaving.difference_update(ids)
            return ids

    async def drop(self, ids: Iterable[UUID]) -> None:
        """Let go of topics that the catalog has no more, each with its logs in one step.

        `ids` may have some that are not found. The caller has the turn of `changes`.
        """
        # Found part by part, so that each part is freed before the next one goes.
        topics = filter(None, map(self._index.by_id, ids))
        counted = ((topic, len(topic.partitions)) for topic in topics)
        for part in in_parts(counted, _PARTITIONS_A_TURN):
            for topic in part:
                self._index.remove(topic)
                for callback in self.on_deleted:
                    callback(topic)
            await self._logs.delete([log for topic in part for log in topic.local])
            await free_logs(part)
