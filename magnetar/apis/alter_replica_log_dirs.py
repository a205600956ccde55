"""AlterReplicaLogDirs (API key 34): move replicas to another directory of this broker (KIP-113).

Versions 1-2.  2: flexible.

There is one directory: to move a replica there changes nothing and succeeds, any other directory
is LOG_DIR_NOT_FOUND. A replica that is named twice takes the last directory, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def _refuse(
    request: AlterReplicaLogDirsRequest, version: int, error: KafkaError
) -> AlterReplicaLogDirsResponse:
    """Refuse every partition, whichever directory it was to move to."""
    topics = [topic for directory in request.dirs for topic in directory.topics]
    return _response((topic.name, dict.fromkeys(topic.partitions, error.code)) for topic in topics)


@handles(
    AlterReplicaLogDirsRequest,
    versions="1-2",
    refuse=_refuse,
    needs=[Whole([Operation.ALTER], Resource.CLUSTER)],
)
async def alter_replica_log_dirs(
    services: Services, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    codes: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        # As in Kafka, which compares absolute paths: a relative one is unknown.
        path = Path(directory.path)
        is_ours = path.is_absolute() and path == services.node.data_dir.absolute()
        for topic in directory.topics:
            # A topic may stand below several directories; its partitions share one entry.
            of_topic = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                of_topic[index] = ErrorCode.LOG_DIR_NOT_FOUND
                if is_ours:
                    of_topic[index] = _move(services, topic.name, index)
    return _response(codes.items())


def _response(
    codes: Iterable[tuple[str, Mapping[int, ErrorCode]]],
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in of_topic.items()
                ],
            )
            for name, of_topic in codes
        ]
    )


def _move(services: Services, topic: str, index: int) -> ErrorCode:
    try:
        services.topics.partition(topic, index)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
