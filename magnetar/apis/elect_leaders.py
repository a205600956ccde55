"""ElectLeaders (API key 43): elect the preferred replica or an unclean leader (KIP-183, KIP-460).

Versions 0-2.  1: unclean elections, a top-level error code.  2: flexible.

Each partition has one replica, which leads it already: each one named is ELECTION_NOT_NEEDED. A
request for all partitions lists none of those, as in Kafka.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1


@handles(
    ElectLeadersRequest,
    versions="0-2",
    refuse=mirror(ElectLeadersResponse, at_each=True),
    needs=[Whole([Operation.ALTER], Resource.CLUSTER)],
)
async def elect_leaders(
    services: Services, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{request.election_type} is no type of election"
        )
    if request.topic_partitions is None:
        # As in Kafka: partitions whose election is not needed are listed only where they are named.
        results = [ReplicaElectionResult(topic=topic.name) for topic in services.topics.all()]
    else:
        results = [
            ReplicaElectionResult(
                topic=asked.topic,
                partition_result=[_elect(services, asked.topic, each) for each in asked.partitions],
            )
            for asked in request.topic_partitions
        ]
    return ElectLeadersResponse(replica_election_results=results)


def _elect(services: Services, topic: str, partition: int) -> PartitionResult:
    result = PartitionResult(
        partition_id=partition,
        error_code=ErrorCode.ELECTION_NOT_NEEDED,
        error_message="Leader election not needed for topic partition.",
    )
    # A partition that does not exist is told so, rather than that it needs no election.
    with refused_in(result):
        services.nodes.leading(topic, partition)
    return result
