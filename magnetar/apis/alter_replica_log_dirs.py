"""AlterReplicaLogDirs (API key 34): move replicas to another directory of this broker (KIP-113).

Versions 1-2.  2: flexible.

There is one directory: to move a replica there changes nothing and succeeds, any other directory
is LOG_DIR_NOT_FOUND. A replica that is named twice takes the last directory, as in Kafka.
"""

from __future__ import annotations

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

#: What becomes of each partition, by topic and index.
_Results = dict[str, dict[int, AlterReplicaLogDirPartitionResult]]


def _refuse(
    request: AlterReplicaLogDirsRequest, version: int, error: KafkaError
) -> AlterReplicaLogDirsResponse:
    """Refuse every partition, whichever directory it was to move to."""
    results: _Results = {}
    for directory in request.dirs:
        for topic in directory.topics:
            results.setdefault(topic.name, {}).update(
                (index, _result(index, error.code)) for index in topic.partitions
            )
    return _response(results)


@handles(
    AlterReplicaLogDirsRequest,
    versions="1-2",
    refuse=_refuse,
    needs=[Whole([Operation.ALTER], Resource.CLUSTER)],
)
async def alter_replica_log_dirs(
    services: Services, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    results: _Results = {}
    async for directory in services.turns.each(request.dirs):
        # As in Kafka, which compares absolute paths: a relative one is unknown.
        path = Path(directory.path)
        is_ours = path.is_absolute() and path == services.node.data_dir.absolute()
        async for topic in services.turns.each(directory.topics):
            # A topic may stand below several directories; its partitions share one entry.
            of_topic = results.setdefault(topic.name, {})
            async for indexes in services.turns.pieces(topic.partitions):
                for index in indexes:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                    if is_ours:
                        code = _move(services, topic.name, index)
                    of_topic[index] = _result(index, code)
    return _response(results)


def _result(index: int, code: ErrorCode) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)


def _response(results: _Results) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=[*of_topic.values()])
            for name, of_topic in results.items()
            # As in Kafka: a topic of which no partition was named is not answered.
            if of_topic
        ]
    )


def _move(services: Services, topic: str, index: int) -> ErrorCode:
    try:
        services.topics.partition(topic, index)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
