"""DeleteRecords (API key 21): give up the records below an offset (KIP-107).

Versions 0-2.  2: flexible.

The offset becomes the log's start, durably before the answer, by one sync for all partitions; a
reader below it gets OFFSET_OUT_OF_RANGE from then on. -1 stands for the high watermark, and an
offset below the start changes nothing. The coordinators' topics are INVALID_TOPIC_EXCEPTION, topics
that are compacted only POLICY_VIOLATION. A partition that is named twice takes the last offset, as
in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Each
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.retention import advance
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_LOW_WATERMARK = -1

#: A partition's answer, its log, and its new start.
_Start: TypeAlias = tuple[DeleteRecordsPartitionResult, PartitionLog, int]


@handles(
    DeleteRecordsRequest,
    versions="0-2",
    refuse=mirror(DeleteRecordsResponse, low_watermark=_NO_LOW_WATERMARK),
    needs=[Each(Operation.DELETE, Resource.TOPIC, "topics")],
)
async def delete_records(
    services: Services, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    offsets: dict[str, dict[int, int]] = {}
    in_turns = services.turns.each
    async for topic in in_turns(request.topics):
        async for piece in services.turns.pieces(topic.partitions):
            for each in piece:
                offsets.setdefault(topic.name, {})[each.partition_index] = each.offset
    response = DeleteRecordsResponse()
    starts: list[_Start] = []
    async for name, partitions in in_turns(offsets.items()):
        result = DeleteRecordsTopicResult(name=name)
        response.topics.append(result)
        async for index, offset in in_turns(partitions.items()):
            partition = DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=_NO_LOW_WATERMARK
            )
            result.partitions.append(partition)
            with refused_in(partition):
                starts.append((partition, *_start_of(services, name, index, offset)))
    # Between the two the start is durable and not in effect, so a client that goes must not end it.
    await services.whole_work.carry(_delete(services, starts))
    async for some in services.turns.pieces(starts):
        for partition, log, _ in some:
            # Deleted, or handed over, while the sync was under way.
            if log.is_gone:
                partition.error_code = log.reader.gone.code
            else:
                partition.low_watermark = log.log_start_offset
    return response


async def _delete(services: Services, starts: Sequence[_Start]) -> None:
    """Make the new starts durable, then begin the logs there."""
    # A start that stays costs nothing more, and a request that moves none costs no sync.
    higher: list[tuple[PartitionLog, int]] = []
    async for some in services.turns.pieces(starts):
        higher += [
            (log, start)
            for _, log, start in some
            # Deleted, or handed over, while a request that names many let others go on.
            if not log.is_gone and start > log.log_start_offset
        ]
    if higher:
        # Durable before any segment goes: a start after a crash must not find a log that begins
        # above what it recorded.
        await services.logs.persist_start_offsets(higher)
    for log, start_offset in higher:
        await advance(services.logs, log, start_offset)


def _start_of(services: Services, name: str, index: int, offset: int) -> tuple[PartitionLog, int]:
    """Return the log and its new start offset; changes nothing. Raises KafkaError."""
    if services.topics.is_internal(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} holds the coordinators' state."
        )
    log = services.topics.partition(name, index)
    # A log that is compacted and deleted loses its beginning by retention anyway.
    if log.config.cleanup_policy == {"compact"}:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} has cleanup.policy=compact.")
    return log, log.deletable_before(offset)
