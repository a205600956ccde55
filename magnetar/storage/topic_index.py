"""The topics that are found, by name and by id; and the names that no new topic may have.

A name is taken from the step in which the creation of its topic begins until the topic is gone, or
was not made. A topic is found from the step in which it is whole. Between the two, requests that
need the topic wait, or are told to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from magnetar.storage.topic import Topic, already_exists
from magnetar.storage.topic_names import TakenNames


class TopicIndex:
    """Every topic that this node knows."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._in_order: Sequence[Topic] | None = None  # None: topics have come or gone since.
        #: Return the topic of a name, or of an id; None if there is none. The dictionaries' own
        #: methods, since every batch asks.
        self.by_name = self._by_name.get
        self.by_id = self._by_id.get
        #: Names of topics that may be in the catalog already, but are not found yet. The futures
        #: resolve when they are, or when their creation has failed.
        self.coming: dict[str, asyncio.Future[None]] = {}
        self._taken = TakenNames()  # The names of both kinds.
        #: Rises with every topic that is made, grown or deleted.
        self.version = 0

    def all(self) -> Sequence[Topic]:
        """Return every topic at this moment, in the order of names."""
        if self._in_order is None:
            self._in_order = [self._by_name[name] for name in sorted(self._by_name)]
        return self._in_order

    def enter(self, topic: Topic) -> Topic:
        """Let a topic be found from now on; return it."""
        self._in_order = None
        self._by_name[topic.name] = topic
        self._taken.add(topic.name)
        self._by_id[topic.id] = topic
        self.version += 1
        return topic

    def remove(self, topic: Topic) -> None:
        """Let a topic be found no more, and its name be free."""
        self._in_order = None
        del self._by_name[topic.name]
        self._taken.discard(topic.name)
        del self._by_id[topic.id]
        self.version += 1

    def check_free(self, name: str) -> None:
        """Raise TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION unless a new topic may be called so.

        The second is for a name that differs from another only in `.` and `_`.
        """
        if name in self._by_name or name in self.coming:
            raise already_exists(name)
        self._taken.check_collision(name)

    def reserve(self, name: str) -> None:
        """Take a name for a topic whose creation begins; `release` is to follow. Raises as
        `check_free`."""
        self.check_free(name)
        self.coming[name] = asyncio.get_running_loop().create_future()
        self._taken.add(name)

    def release(self, names: Iterable[str]) -> None:
        """End the creation of topics: those that are not found have failed, their names are free.

        Whatever waits in `until_made` goes on.
        """
        for name in names:
            self.coming.pop(name).set_result(None)
            if name not in self._by_name:
                self._taken.discard(name)

    async def until_made(self, name: str) -> None:
        """Return when no other request is creating a topic of that name.

        A client that is then told that the topic exists finds it.
        """
        while (coming := self.coming.get(name)) is not None:
            await asyncio.shield(coming)
