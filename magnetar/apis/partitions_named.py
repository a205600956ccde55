"""Which partitions a request is for: those that it names, or the shard of its group or transaction.

In a cluster partitions move between nodes; what is for one that moves waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from coordinator.transactions.metadata import TopicPartition
from magnetar.runtime.services import Services
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.types import ZERO_UUID

#: More topics, or partitions, of a request are not looked at: a millisecond's work.
LOOKED_AT = 500

#: Yields what a request is for; a partition may be in it twice.
Partitions: TypeAlias = Callable[[Services, Any], Iterable[TopicPartition]]


def groups_in(ids: Callable[[Any], Iterable[str]]) -> Partitions:
    """Return what finds the shards of these groups."""
    return lambda services, request: services.nodes.shards_of(CONSUMER_OFFSETS, ids(request))


def transactions_in(ids: Callable[[Any], Iterable[str | None]]) -> Partitions:
    """Return what finds the shards of these transactional ids."""
    return lambda services, request: services.nodes.shards_of(TRANSACTION_STATE, ids(request))


#: Finds the shard of a request's `group_id`.
OF_GROUP = groups_in(lambda request: (request.group_id,))
#: Finds the shard of a request's `transactional_id`, which may be null.
OF_TRANSACTION = transactions_in(lambda request: (request.transactional_id,))


def shards_of(topic: str) -> Partitions:
    """Return what finds all shards of a coordinator, whose topic this is."""

    def find(services: Services, _request: Any) -> Iterator[TopicPartition]:
        found = services.topics.by_name(topic)
        for index in range(0 if found is None else len(found.partitions)):
            yield TopicPartition(topic, index)

    return find


def partitions_in(topics: str, *, name: str, partitions: str, index: str) -> Partitions:
    """Return what finds the partitions in a request's list `topics`, by the names of its fields."""

    def find(services: Services, request: Any) -> Iterator[TopicPartition]:
        for asked in islice(getattr(request, topics), LOOKED_AT):
            topic = getattr(asked, name)
            topic_id = getattr(asked, "topic_id", ZERO_UUID)
            if topic_id != ZERO_UUID:
                found = services.topics.by_id(topic_id)
                if found is None:
                    continue
                topic = found.name
            for partition in getattr(asked, partitions):
                yield TopicPartition(topic, getattr(partition, index))

    return find
