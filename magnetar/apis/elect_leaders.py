"""ElectLeaders (API key 43): elect the preferred replica or an unclean leader (KIP-183, KIP-460).

Versions 0-2.  1: unclean elections, a top-level error code.  2: flexible.

In a cluster the first assigned replica of a partition becomes its leader, without any request and
within seconds. This request waits for that move. PREFERRED_LEADER_NOT_AVAILABLE: the first replica
does not live. REQUEST_TIMED_OUT: the move takes longer. ELECTION_NOT_NEEDED: the first replica
leads, or no replicas are assigned, so that any leader is the preferred one; for an unclean
election, the leader lives. A request for all partitions leaves these out, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    # Many such requests may come at once, and each lists all topics.
    await services.turns.begin()
    results, moving = [], []
    async for name, partitions in services.turns.each([*_asked_for(services, request)]):
        elected = ReplicaElectionResult(topic=name)
        async for index in services.turns.each(partitions):
            result = PartitionResult(partition_id=index, error_message=None)
            with refused_in(result):
                moving.append((_elect(services, name, index, is_preferred=is_preferred), result))
            # As in Kafka: where no election is needed, only partitions that are named are listed.
            is_named = request.topic_partitions is not None
            if is_named or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                elected.partition_result.append(result)
        results.append(elected)
    await _await_moves(services, moving, request.timeout_ms)
    return ElectLeadersResponse(replica_election_results=results)


def _asked_for(
    services: Services, request: ElectLeadersRequest
) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        for topic in services.topics.all():
            yield topic.name, range(len(topic.partitions))
    else:
        for asked in request.topic_partitions:
            yield asked.topic, asked.partitions


def _elect(services: Services, name: str, index: int, *, is_preferred: bool) -> Led:
    """Return the partition, whose leader is about to move. Raises KafkaError if none will."""
    # First: a partition that does not exist is refused as unknown, not as needing no election.
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
            f"The preferred leader, broker {first}, is not alive.",
        )
    return led


async def _await_moves(
    services: Services, moving: list[tuple[Led, PartitionResult]], timeout_ms: int
) -> None:
    """Wait for the moves, and give each one that has not ended in time REQUEST_TIMED_OUT."""
    topics, nodes = services.topics, services.nodes
    if not moving or await until_in_place(topics, nodes, (led for led, _ in moving), timeout_ms):
        return
    for led, result in moving:
        if not is_in_place(topics, nodes, led):
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "The leader moves soon: its node has not handed over yet."
