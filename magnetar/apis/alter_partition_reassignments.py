"""AlterPartitionReassignments (API key 45): move replicas to other brokers, or stop it (KIP-455).

Versions 0-1.  1: whether the number of replicas may change (KIP-860).

In a cluster an assignment is stored at once, since there is nothing to copy, and the first replica
that lives leads from then on: clients are told of the old leader for a moment more. Where all data
is on one disk, one node holds the one replica: a move to that node changes nothing and succeeds,
one to another is INVALID_REPLICA_ASSIGNMENT, one to several INVALID_REPLICATION_FACTOR. There is
no move that could be stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.reassigning import assign, until_in_place
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leadership import Led
from magnetar.storage.replicas import Replicas
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
    changes_catalog=True,
)
async def alter_partition_reassignments(
    services: Services, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
    )
    may_change = request.allow_replication_factor_change
    assigned: dict[UUID, dict[int, Replicas]] = {}
    each = services.turns.each
    async for topic in each(request.topics):
        answered = ReassignableTopicResponse(name=topic.name)
        async for asked in each(topic.partitions):
            result = ReassignablePartitionResponse(
                partition_index=asked.partition_index, error_message=None
            )
            with refused_in(result):
                led, replicas = _checked(services, topic.name, asked, may_change=may_change)
                assigned.setdefault(led.topic_id, {})[led.partition] = replicas
            answered.partitions.append(result)
        response.responses.append(answered)
    if services.topics.placement.moves and assigned:
        await _move(services, assigned, request.timeout_ms)
    return response


def _checked(
    services: Services, name: str, asked: ReassignablePartition, *, may_change: bool
) -> tuple[Led, Replicas]:
    """Return a partition, and the replicas that it is to have. Raises KafkaError."""
    index, nodes = asked.partition_index, services.nodes
    leader = nodes.leading(name, index)
    topic = services.topics.by_name(name)
    assert topic is not None, "as Nodes.leading has seen"
    if asked.replicas is None:
        # Null asks to stop the move that is under way.
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    moves = services.topics.placement.moves
    replicas = nodes.check_assignment(asked.replicas)
    if not moves and replicas[0] != leader:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Node {leader} leads the partition, and partitions do not move while the nodes run.",
        )
    if moves and not may_change:
        now = topic.replicas(index, leader, nodes.known)
        if len(replicas) != len(now):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(now)} to {len(replicas)}",
            )
    return Led(topic.id, index), replicas


async def _move(
    services: Services, assigned: Mapping[UUID, Mapping[int, Replicas]], timeout_ms: int
) -> None:
    """Store assignments, and wait a while for the leaders: a tool that verifies finds them there.

    A move that takes longer is listed as one under way.
    """
    topics, nodes = services.topics, services.nodes
    await assign(services.catalog, topics, nodes, assigned)
    moving = (Led(topic_id, index) for topic_id, each in assigned.items() for index in each)
    await until_in_place(topics, nodes, moving, timeout_ms)
