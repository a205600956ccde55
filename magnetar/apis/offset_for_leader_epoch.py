"""OffsetForLeaderEpoch (API key 23): the end offset of a leader epoch.

Versions 2-4.  3: a replica id (-1 for consumers).  4: flexible.

The end is that of the largest epoch that is not above the one asked for; (-1, -1) where the log
knows no such epoch. A consumer learns by it whether its position was truncated.  KIP-320.
"""

from __future__ import annotations

from magnetar.apis.authorization import Each
from magnetar.apis.leader_epochs import check_leader_epoch
from magnetar.apis.partitions_named import partitions_in
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(
    OffsetForLeaderEpochRequest,
    versions="2-4",
    needs=[Each(Operation.DESCRIBE, Resource.TOPIC, "topics", or_cluster=Operation.CLUSTER_ACTION)],
    is_for=partitions_in("topics", name="topic", partitions="partitions", index="partition"),
)
async def offset_for_leader_epoch(
    services: Services, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    each = services.turns.each
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_offset(services, topic.topic, asked)
                    async for asked in each(topic.partitions)
                ],
            )
            async for topic in each(request.topics)
        ]
    )


def _end_offset(services: Services, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=asked.partition)
    with refused_in(result):
        log = services.topics.partition(topic, asked.partition)
        check_leader_epoch(log, asked.current_leader_epoch)
        result.leader_epoch, result.end_offset = log.end_offset_for_epoch(asked.leader_epoch)
    return result
