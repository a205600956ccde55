"""ListPartitionReassignments (API key 46): the moves of replicas under way (KIP-455).

Version 0.

In a cluster a move is under way from its assignment until a node that is assigned leads: a second
or so. Where all data is on one disk there are none.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.reassigning import preferred
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import leader_id
from magnetar.storage.topic import Topic
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(
    ListPartitionReassignmentsRequest,
    versions="0",
    needs=[Whole([Operation.DESCRIBE], Resource.CLUSTER)],
)
async def list_partition_reassignments(
    services: Services, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        async for piece in services.turns.pieces(request.topics):
            asked.update((topic.name, {*topic.partition_indexes}) for topic in piece)
    response = ListPartitionReassignmentsResponse(error_message=None)
    async for topic in services.turns.each(services.topics.all()):
        wanted = topic.assigned.keys() if asked is None else asked.get(topic.name, set())
        found = [one for one in _moving(services, topic) if one.partition_index in wanted]
        if found:
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=found))
    return response


def _moving(services: Services, topic: Topic) -> Iterator[OngoingPartitionReassignment]:
    for index, replicas in sorted(topic.assigned.items()):
        if index >= len(topic.partitions) or preferred(topic, index, services.nodes) is None:
            continue
        leader = leader_id(topic.partitions[index], services.node.id)
        if leader not in replicas:
            yield OngoingPartitionReassignment(
                partition_index=index,
                replicas=[*replicas, leader],
                adding_replicas=[*replicas],
                removing_replicas=[leader],
            )
