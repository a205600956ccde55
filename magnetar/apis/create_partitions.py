"""CreatePartitions (API key 37): add partitions to topics, or check that they could be.

Versions 0-3.  2: flexible.  3: THROTTLING_QUOTA_EXCEEDED (KIP-599).

The count that a request names is the topic's new whole count, and must be an increase. A request
for more than 10,000 topics, or new partitions, is refused as a whole. Each topic stands alone, and
its new partitions can be written to when it is answered. Replicas on brokers that do not exist are
INVALID_REPLICA_ASSIGNMENT. The coordinators' topics cannot grow: Kafka lets them, and loses groups
and transactions by it.
"""

from __future__ import annotations

from collections import Counter

from magnetar.apis.authorization import Each
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.replicas import Replicas
from magnetar.storage.topic import Topic
from magnetar.storage.topic_counts import check_total
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_STRICT_SINCE = 3


@handles(
    CreatePartitionsRequest,
    versions="0-3",
    needs=[Each(Operation.ALTER, Resource.TOPIC, "topics")],
    changes_catalog=True,
)
async def create_partitions(
    services: Services, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    # Before any topic grows: a request for too much is refused as a whole.
    check_changes(len(request.topics))
    await _check_total(services, request.topics)
    named = Counter(topic.name for topic in request.topics)
    # As in Kafka: a topic named twice is refused once, and others of the request grow.
    distinct = {topic.name: topic for topic in request.topics}
    results = []
    async for name, asked in services.turns.each(distinct.items()):
        result = CreatePartitionsTopicResult(name=name, error_message=None)
        with refused_in(result):
            if named[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            # Before the assignments, which are compared with the partitions that the topic lacks.
            topic = services.topics.check_growth(name, asked.count)
            assigned = _assigned(services, topic, asked)
            services.quotas.charge_mutation(
                context,
                asked.count - len(topic.partitions),
                is_strict=context.version >= _STRICT_SINCE,
            )
            if not request.validate_only:
                await services.topics.grow(name, asked.count, assigned)
        results.append(result)
    return CreatePartitionsResponse(results=results)


async def _check_total(services: Services, asked: list[CreatePartitionsTopic]) -> None:
    """Refuse a request for too many partitions. Raises as `check_total`."""
    total = 0
    async for growth in services.turns.each(asked):
        topic = services.topics.by_name(growth.name)
        # A topic that does not exist is refused later, alone.
        if topic is not None:
            # A decrease is refused later, alone. Until then it must not make room for other topics.
            total += max(growth.count - len(topic.partitions), 0)
    check_total(total)


def _assigned(services: Services, topic: Topic, asked: CreatePartitionsTopic) -> list[Replicas]:
    """Return the replicas of each new partition; none where the request leaves the choice.

    Raises INVALID_REPLICA_ASSIGNMENT unless each new partition is given replicas, or none is.
    """
    if asked.assignments is None:
        return []
    added = asked.count - len(topic.partitions)
    if len(asked.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but {len(asked.assignments)}"
            " assignment(s) were specified.",
        )
    factor, check = topic.replication_factor, services.nodes.check_assignment
    return [check(each.broker_ids, factor) for each in asked.assignments]
