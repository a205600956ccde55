"""DescribeTopicPartitions (API key 75): topics and their partitions, page by page (KIP-966).

Version 0.

Topics come in the order of their names, all of them where none is named. A page has at most as many
partitions as the request and `max.request.partition.size.limit` allow, and at least one. Where
there are more, the response ends with a cursor, from which the next request goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge

from magnetar.apis.authorization import allowed_operations, may, require
from magnetar.apis.leaders import tell_replicas
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import Partition, leader_id
from magnetar.storage.topic_names import check_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)

#: Names that are sorted in one step: within a millisecond.
_SORTED_AT_ONCE = 2048


@handles(DescribeTopicPartitionsRequest, versions="0")
async def describe_topic_partitions(
    services: Services, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    limit = min(request.response_partition_limit, services.config.max_request_partition_size_limit)
    # At least one, or a client that asks for none would never come to the end.
    room = max(limit, 1)
    response = DescribeTopicPartitionsResponse()
    asked = await _asked_for(services, request, context)
    async for name, first_partition in services.turns.each(asked):
        if room == 0:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        described = await _describe(services, context, name, first_partition, room)
        response.topics.append(described)
        if described.error_code:
            # No cursor points into it: that would tell of a topic which the client may not know.
            continue
        room -= len(described.partitions)
        end = first_partition + len(described.partitions)
        topic = services.topics.by_name(name)
        if topic is not None and end < len(topic.partitions):
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=end)
            break
    return response


async def _asked_for(
    services: Services, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Iterable[tuple[str, int]]:
    """Return each topic's name and the partition to begin with. Raises INVALID_REQUEST."""
    # Sorted: a cursor is a name, and what lies behind it is what has not been told.
    named = await _sorted_names(services, request)
    # What the client may not know of is left out, where it asks for everything.
    names = named or [
        topic.name
        for topic in services.topics.all()
        if may(services, context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
    ]
    cursor = request.cursor
    if cursor is None:
        return ((name, 0) for name in names)
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
    if named and cursor.topic_name not in named:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's topic is not asked for")
    return (
        (name, cursor.partition_index if name == cursor.topic_name else 0)
        for name in names
        # The cursor's topic may be gone: the page goes on with the next name.
        if name >= cursor.topic_name
    )


async def _sorted_names(services: Services, request: DescribeTopicPartitionsRequest) -> list[str]:
    """Return the names in the request in order, each once. All at once would take long."""
    turns = services.turns
    names: set[str] = set()
    async for piece in turns.pieces(request.topics):
        names.update(topic.name for topic in piece)
    runs = [sorted(some) async for some in turns.pieces([*names], _SORTED_AT_ONCE)]
    return [name async for name in turns.each(merge(*runs))]


async def _describe(
    services: Services,
    context: RequestContext,
    name: str,
    first_partition: int,
    partitions_max: int,
) -> DescribeTopicPartitionsResponseTopic:
    described = DescribeTopicPartitionsResponseTopic(name=name)
    with refused_in(described):
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, name)
    if described.error_code:
        return described
    described.topic_authorized_operations = allowed_operations(
        services, context, Resource.TOPIC, name
    )
    topic = services.topics.by_name(name)
    if topic is None:
        with refused_in(described):
            check_name(name)
            described.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return described
    described.topic_id = topic.id
    described.is_internal = topic.is_internal
    partitions = topic.partitions[first_partition : first_partition + partitions_max]
    index = first_partition
    async for piece in services.turns.pieces(partitions):
        some = [
            _partition(number, one, leader_id(one, services.node.id))
            for number, one in enumerate(piece, index)
        ]
        tell_replicas(services, topic, some)
        described.partitions += some
        index += len(piece)
    return described


def _partition(
    index: int, partition: Partition, node_id: int
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=node_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[node_id],
        isr_nodes=[node_id],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
