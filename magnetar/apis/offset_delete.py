"""OffsetDelete (API key 47): delete the offsets that a group has committed for some partitions.

Version 0.

GROUP_SUBSCRIBED_TO_TOPIC for a topic that a consumer of the group reads; a group of
another protocol type must be empty (NON_EMPTY_GROUP).  KIP-496.

An error at the top is the group's, so topics that are denied have theirs in each partition.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole, log_denied, may
from magnetar.apis.committed_topics import joined
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(
    OffsetDeleteRequest,
    versions="0",
    needs=[Whole([Operation.DELETE], Resource.GROUP, "group_id")],
)
async def offset_delete(
    services: Services, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    #: The results of each (topic, partition) that exists. One that is named often goes once.
    existing: dict[tuple[str, int], list[OffsetDeleteResponsePartition]] = {}
    denied: list[str] = []
    topics = []
    async for asked in services.turns.each(request.topics):
        partitions: list[OffsetDeleteResponsePartition] = []
        is_allowed = may(services, context, Operation.READ, Resource.TOPIC, asked.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not is_allowed:
            denied.append(asked.name)
            missing = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        async for piece in services.turns.pieces(asked.partitions):
            topic = services.topics.by_name(asked.name) if is_allowed else None
            count = 0 if topic is None else len(topic.partitions)
            for each in piece:
                index = each.partition_index
                result = OffsetDeleteResponsePartition(partition_index=index)
                partitions.append(result)
                if 0 <= index < count:
                    existing.setdefault((asked.name, index), []).append(result)
                else:
                    result.error_code = missing
        topics.append(OffsetDeleteResponseTopic(name=asked.name, partitions=partitions))
    if denied:
        # One line for all of them: a request may name more than a log should hold.
        log_denied(
            services, context, Operation.READ, Resource.TOPIC, denied[0], denied_count=len(denied)
        )
    topics = joined(topics)
    # All of them in one step.
    await services.turns.begin()
    codes = await services.groups.offsets.delete(request.group_id, [*existing])
    for results, code in zip(existing.values(), codes, strict=True):
        for result in results:
            result.error_code = code
    return OffsetDeleteResponse(topics=topics)
