"""OffsetDelete (API key 47): delete the offsets that a group has committed for some partitions.

Version 0.

GROUP_SUBSCRIBED_TO_TOPIC for a topic that a consumer of the group reads; a group of
another protocol type must be empty (NON_EMPTY_GROUP).  KIP-496.
"""

from __future__ import annotations

from magnetar.apis.authorization import Each, Whole
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
    needs=[
        Whole([Operation.DELETE], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
)
async def offset_delete(
    services: Services, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    deleted: list[tuple[str, int]] = []
    results: list[OffsetDeleteResponsePartition] = []
    topics = []
    for asked in request.topics:
        topic = services.topics.by_name(asked.name)
        partitions = []
        for partition in asked.partitions:
            index = partition.partition_index
            result = OffsetDeleteResponsePartition(partition_index=index)
            partitions.append(result)
            if topic is None or not 0 <= index < len(topic.partitions):
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            deleted.append((asked.name, index))
            # In the order of `deleted`: the codes come back by position.
            results.append(result)
        topics.append(OffsetDeleteResponseTopic(name=asked.name, partitions=partitions))
    codes = await services.groups.offsets.delete(request.group_id, deleted)
    for result, code in zip(results, codes, strict=True):
        result.error_code = code
    return OffsetDeleteResponse(topics=topics)
