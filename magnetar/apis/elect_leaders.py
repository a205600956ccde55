"""ElectLeaders (API key 43): elect the preferred replica or an unclean leader (KIP-183, KIP-460).

Versions 0-2.  1: unclean elections, a top-level error code.  2: flexible.

In a cluster a partition with assigned replicas goes to the first of them: by itself soon, and until
the answer here. PREFERRED_LEADER_NOT_AVAILABLE says that this node does not live, REQUEST_TIMED_OUT
that the move takes longer. Any other partition is led by its preferred replica already, whichever
leads it: ELECTION_NOT_NEEDED. So is one whose leader lives, for an unclean election. A request for
all partitions lists none of those that need no election, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.reassigning import is_in_place, until_in_place
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leadership import Led
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
    changes_catalog=True,
)
async def elect_leaders(
    services: Services, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{request.election_type} is no type of election"
        )
    is_preferred = request.election_type == _PREFERRED
    results, moving = [], []
    async for name, partitions in services.turns.each([*_asked_for(services, request)]):
        elected = ReplicaElectionResult(topic=name)
        async for index in services.turns.each(partitions):
            result = PartitionResult(partition_id=index, error_message=None)
            with refused_in(result):
                moving.append((_elect(services, name, index, is_preferred=is_preferred), result))
            _list(elected, result, is_all=request.topic_partitions is None)
        results.append(elected)
    await _await_moves(services, moving, request.timeout_ms)
    return ElectLeadersResponse(replica_election_results=results)


def _asked_for(services: Services, request: ElectLeadersRequest) -> Iterator[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        for topic in services.topics.all():
            yield topic.name, [*range(len(topic.partitions))]
    else:
        for asked in request.topic_partitions:
            yield asked.topic, asked.partitions


def _list(elected: ReplicaElectionResult, result: PartitionResult, *, is_all: bool) -> None:
    # As in Kafka: partitions whose election is not needed are listed only where they are named.
    if not (is_all and result.error_code == ErrorCode.ELECTION_NOT_NEEDED):
        elected.partition_result.append(result)


def _elect(services: Services, name: str, index: int, *, is_preferred: bool) -> Led:
    """Return the partition, whose leader is about to move. Raises KafkaError where it is not."""
    # First: a partition that does not exist is told so, rather than that it needs no election.
    leader = services.nodes.leading(name, index)
    topic = services.topics.by_name(name)
    assert topic is not None, "as Nodes.leading has seen"
    led = Led(topic.id, index)
    first = topic.assigned.get(index, (leader,))[0]
    is_wanted = leader == first if is_preferred else leader in services.nodes.ids
    if is_wanted:
        raise KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
    if is_preferred and (
        first not in services.nodes.ids or is_in_place(services.topics, services.nodes, led)
    ):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader, broker {first}, does not live.",
        )
    return led


async def _await_moves(
    services: Services, moving: list[tuple[Led, PartitionResult]], timeout_ms: int
) -> None:
    """Wait for the moves, and say of each that has not ended in time that it has not."""
    topics, nodes = services.topics, services.nodes
    if not moving or await until_in_place(topics, nodes, (led for led, _ in moving), timeout_ms):
        return
    for led, result in moving:
        if not is_in_place(topics, nodes, led):
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "The leader moves soon: its node has not handed over yet."
