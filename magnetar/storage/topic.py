"""One topic as a node knows it: its settings, and its partitions here and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeVar

from logstore.partition.log import PartitionLog
from magnetar.config.topic import TopicConfig
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere, Partition, local
from magnetar.storage.logs import Opening
from magnetar.storage.replicas import Known, Replicas, told
from wire.error_code import ErrorCode
from wire.errors import KafkaError

_T = TypeVar("_T")

#: Logs that are freed in one turn, in about a millisecond.
_FREED_TOGETHER = 256
#: Stands for a partition of a deleted topic.
_NOWHERE = Elsewhere(-1, -1)


class Topic:
    """One topic. `configs` are its own settings as text, `settings` all of them resolved."""

    __slots__ = (
        "assigned",
        "configs",
        "id",
        "is_internal",
        "name",
        "partitions",
        "replication_factor",
        "settings",
    )

    def __init__(self, row: TopicRow, settings: TopicConfig, partitions: list[Partition]) -> None:
        self.name = row.name
        self.id = row.id
        self.replication_factor = row.replication_factor
        self.is_internal = row.is_internal
        #: In a cluster: the replicas of partitions that have assigned ones.
        self.assigned = row.assigned
        self.configs = row.configs
        self.settings = settings
        self.partitions = partitions

    @property
    def local(self) -> list[PartitionLog]:
        """The logs of the partitions that this node leads, in order."""
        return local(self.partitions)

    def replicas(self, partition: int, leader: int, nodes: Known) -> Replicas:
        """Return the replicas of a partition of a cluster that `leader` leads."""
        assigned = self.assigned.get(partition, ())
        return told(self.id, partition, leader, self.replication_factor, nodes, assigned)


async def free_logs(topics: Iterable[Topic]) -> None:
    """Free the logs of deleted topics, some in each turn of the event loop.

    A handler that has found such a topic holds it until it ends, and would free 10,000 in one step.
    It finds them led by no node.
    """
    for topic in topics:
        partitions = topic.partitions
        for first in range(0, len(partitions), _FREED_TOGETHER):
            if first:
                await asyncio.sleep(0)
            count = min(_FREED_TOGETHER, len(partitions) - first)
            partitions[first : first + count] = [_NOWHERE] * count


def in_parts(counted: Iterable[tuple[_T, int]], partitions_max: int) -> Iterator[list[_T]]:
    """Yield topics in lists of about so many partitions; a larger topic is not divided.

    `counted`: each of them, and how many partitions it has.
    """
    part: list[_T] = []
    seen = 0
    for topic, partition_count in counted:
        part.append(topic)
        seen += partition_count
        if seen >= partitions_max:
            yield part
            part, seen = [], 0
    if part:
        yield part


def opening(row: TopicRow, index: int, settings: TopicConfig) -> Opening:
    """Return what the log of a partition is opened with."""
    epoch = row.leaders[index].leader_epoch if row.leaders else 0
    return Opening(row.name, index, row.id, settings, epoch)


def being_created(name: str) -> KafkaError:
    """Return why a topic is not found yet: clients ask again."""
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"Topic {name} is being created.")


def no_topic(name: str) -> KafkaError:
    """Return what a request for a topic that is not there, or is going, is answered."""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def already_exists(name: str) -> KafkaError:
    """Return why a topic is not created."""
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
