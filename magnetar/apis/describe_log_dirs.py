"""DescribeLogDirs (API key 35): the data directory and the sizes of the logs in it (KIP-113).

Versions 1-5.  2: flexible.  3: a top-level error code.  4: size of the disk (KIP-827).  5: whether
the directory takes new logs (KIP-1066): it always does.

Partitions that do not exist are left out, as in Kafka.
"""

from __future__ import annotations

import shutil

from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic import Topic
from wire.errors import KafkaError
from wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_UNKNOWN_BYTES = -1


def _refuse(
    request: DescribeLogDirsRequest, version: int, error: KafkaError
) -> DescribeLogDirsResponse:
    """Refuse at the top; a client before version 3 sees a response without directories."""
    # Not a mirror of the request: the things in the response are directories, not its topics.
    return DescribeLogDirsResponse(error_code=error.code)


@handles(
    DescribeLogDirsRequest,
    versions="1-5",
    refuse=_refuse,
    needs=[Whole([Operation.DESCRIBE], Resource.CLUSTER)],
)
async def describe_log_dirs(
    services: Services, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    turns = services.turns
    await turns.begin()
    total_bytes, usable_bytes = _disk(services)
    topics = []
    async for topic, asked in turns.each(await _asked_for(services, request.topics)):
        partitions: list[DescribeLogDirsPartition] = []
        async for piece in turns.pieces(topic.local):
            partitions += [
                _partition(log)
                for log in piece
                # The topic may be deleted meanwhile.
                if not log.is_gone and (asked is None or log.partition in asked)
            ]
        # A topic is left out where the request names none of its partitions.
        if partitions:
            topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
    result = DescribeLogDirsResult(
        log_dir=str(services.node.data_dir.absolute()),
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


async def _asked_for(
    services: Services, asked: list[DescribableLogDirTopic] | None
) -> list[tuple[Topic, set[int] | None]]:
    """Return the topics, and which of their partitions; None: all."""
    # Null asks for all partitions, an empty list for none.
    if asked is None:
        return [(topic, None) for topic in services.topics.all()]
    indexes: dict[str, tuple[Topic, set[int]]] = {}
    async for piece in services.turns.pieces(asked):
        for each in piece:
            topic = services.topics.by_name(each.topic)
            # Nothing is kept of names that do not exist.
            if topic is not None:
                indexes.setdefault(each.topic, (topic, set()))[1].update(each.partitions)
    return [*indexes.values()]


def _partition(log: PartitionLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(partition_index=log.partition, partition_size=log.size_bytes)


def _disk(services: Services) -> tuple[int, int]:
    """Return the total and the free bytes of the directory's disk; -1 for unknown."""
    if not services.logs.has_directory:  # In a cluster the directory holds no partitions.
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    try:
        usage = shutil.disk_usage(services.node.data_dir)
    # With durability=memory there is none on a disk.
    except FileNotFoundError:
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    return usage.total, usage.free
