"""AlterPartitionReassignments (API key 45): move replicas to other brokers, or stop it (KIP-455).

Versions 0-1.  1: whether the number of replicas may change (KIP-860); it is one here and cannot.

One node holds the one replica. A move to that node changes nothing and succeeds; a move to another
is INVALID_REPLICA_ASSIGNMENT, and there is no move that could be stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_counts import check_replicas
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(
    AlterPartitionReassignmentsRequest,
    versions="0-1",
    refuse=mirror(AlterPartitionReassignmentsResponse, at_each=True),
    needs=[Whole([Operation.ALTER], Resource.CLUSTER)],
)
async def alter_partition_reassignments(
    services: Services, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassign(services, topic.name, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassign(
    services: Services, topic: str, asked: ReassignablePartition
) -> ReassignablePartitionResponse:
    response = ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_message=None
    )
    with refused_in(response):
        leader = services.nodes.leading(topic, asked.partition_index)
        _check_replicas(services.nodes.ids, leader, asked.replicas)
    return response


def _check_replicas(node_ids: Sequence[int], leader: int, replicas: list[int] | None) -> None:
    if replicas is None:
        # Null asks to stop the move that is under way.
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if check_replicas(node_ids, replicas) != leader:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Node {leader} leads the partition, and partitions do not move while the nodes run.",
        )
