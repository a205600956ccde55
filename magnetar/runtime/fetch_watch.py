"""Which partitions of a fetch, or of a fetch session, have to be read: those that have moved.

A partition is *due* until a read has found nothing new in it. From then on the watch is subscribed
to its log, and the first move of a bound makes the partition due again. So a session of ten
thousand quiet partitions costs nothing for each fetch, and a log calls back once for each session
whose client has gone. The subscriptions of sessions are bounded as their partitions are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

#: A topic's id, or its name before version 13, and the partition.
PartitionKey = tuple[UUID | str, int]


class Moving(Protocol):
    """What a watch hears from: a partition's `LogReader`."""

    def subscribe(self, callback: Callable[[], None]) -> None: ...
    def unsubscribe(self, callback: Callable[[], None]) -> None: ...


class FetchWatch:
    """The partitions of one fetch or session. One fetch at a time, the `owner`, works with it."""

    __slots__ = ("_subscriptions", "due", "moved", "owner", "wake")

    def __init__(self, keys: Iterable[PartitionKey]) -> None:
        #: What is to be read, in the order of reading. A partition stays until it is settled.
        self.due = dict.fromkeys(keys)
        #: What has moved while the owner waits.
        self.moved: dict[PartitionKey, None] = {}
        #: The fetch that reads and waits at present. Another fetch may take its place.
        self.owner: object = None
        #: Called once, when a partition moves or the owner loses the watch.
        self.wake: Callable[[], None] | None = None
        self._subscriptions: dict[PartitionKey, _Subscription] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no partition at all."""
        return not self.due and not self._subscriptions

    def take(self, owner: object, wake: Callable[[], None] | None = None) -> None:
        """Give the watch to another fetch, which waits if it has a `wake`; wake the former one."""
        self.owner = owner
        self.moved.clear()
        former, self.wake = self.wake, wake
        if former is not None:
            former()

    def end(self, owner: object) -> None:
        """The fetch is over. Its records must not be held any longer."""
        if self.owner is owner:
            self.owner = self.wake = None

    def settle(self, key: PartitionKey, reader: Moving) -> None:
        """A read found nothing new: do not read the partition until it moves."""
        self.due.pop(key, None)
        self.subscribe(key, reader)

    def subscribe(self, key: PartitionKey, reader: Moving) -> None:
        """Note the next move of a partition. In the step in which its bounds were read."""
        if key not in self._subscriptions:
            subscription = self._subscriptions[key] = _Subscription(self, key, reader)
            reader.subscribe(subscription)

    def on_moved(self, key: PartitionKey) -> None:
        """A log's bound has moved, or it is deleted. Its subscription has ended."""
        del self._subscriptions[key]
        self.due[key] = None
        self.moved[key] = None
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    def renew(self, key: PartitionKey) -> None:
        """Read the partition anew: what is asked of it has changed."""
        self.forget(key)
        self.due[key] = None

    def forget(self, key: PartitionKey) -> None:
        """The partition is not to be read any more."""
        self.due.pop(key, None)
        self.moved.pop(key, None)
        subscription = self._subscriptions.pop(key, None)
        if subscription is not None:
            subscription.end()

    def put_last(self, key: PartitionKey) -> None:
        """Read the other partitions first next time."""
        if key in self.due:
            del self.due[key]
            self.due[key] = None

    def close(self) -> None:
        """End every subscription, and the owner's wait."""
        for subscription in self._subscriptions.values():
            subscription.end()
        self._subscriptions.clear()
        self.due.clear()
        self.take(None)


class _Subscription:
    """Hears of one move of one partition."""

    __slots__ = ("_key", "_reader", "_watch")

    def __init__(self, watch: FetchWatch, key: PartitionKey, reader: Moving) -> None:
        self._watch = watch
        self._key = key
        self._reader = reader

    def __call__(self) -> None:
        self.end()
        self._watch.on_moved(self._key)

    def end(self) -> None:
        self._reader.unsubscribe(self)
