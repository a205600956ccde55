"""DeleteTopics (API key 20): delete topics by name or by id.

Versions 1-6.  3: TOPIC_DELETION_DISABLED where delete.topic.enable is off (before:
INVALID_REQUEST).  4: flexible.  5: error messages, THROTTLING_QUOTA_EXCEEDED (KIP-599).  6: topic
ids (KIP-516).

A request of more than 10,000 topics is refused as a whole. A topic is gone when it is answered, and
fetches that wait for its data are answered at once. The coordinators' topics cannot be deleted:
Kafka allows it, and loses groups and transactions by it. Nor can the topic of the progress of
Spark's queries, whose offsets would go with it: each query could then write its history again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from uuid import UUID

from coordinator.groups.offsets.store import PROGRESS_TOPIC
from magnetar.apis.authorization import may, require
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import ZERO_UUID
from wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_DELETION_DISABLED_SINCE = 3
_STRICT_SINCE = 5


@handles(DeleteTopicsRequest, versions="1-6", changes_catalog=True)
async def delete_topics(
    services: Services, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    _check_enabled(services, context.version)
    check_changes(len(request.topic_names) + len(request.topics))
    # Up to version 5 topics are a list of names, from version 6 on a list of structs.
    named: Counter[tuple[str | None, UUID]] = Counter()
    async for names in services.turns.pieces(request.topic_names):
        named.update((name, ZERO_UUID) for name in names)
    async for structs in services.turns.pieces(request.topics):
        named.update((topic.name, topic.topic_id) for topic in structs)
    twice = _named_by_both(services, named)
    ids_of_twice: dict[str | None, UUID] = {name: topic_id for topic_id, name in twice.items()}
    results = []
    going: dict[UUID, DeletableTopicResult] = {}
    async for name, topic_id in services.turns.each(named):
        if topic_id in twice:
            # The name is refused below: as in Kafka one refusal stands for both.
            continue
        # As in Kafka, the refusal of a name that is asked for by its id too has that id.
        result = DeletableTopicResult(name=name, topic_id=ids_of_twice.get(name, topic_id))
        with refused_in(result):
            if named[name, topic_id] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic.")
            if name in ids_of_twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "A topic is named twice: by its name and by its id."
                )
            asked_for = DeleteTopicState(name=name, topic_id=topic_id)
            topic = _find(services, asked_for, context)
            result.name, result.topic_id = topic.name, topic.id
            if not may(services, context, Operation.DELETE, Resource.CLUSTER):
                require(services, context, Operation.DELETE, Resource.TOPIC, topic.name)
            services.quotas.charge_mutation(
                context, len(topic.partitions), is_strict=context.version >= _STRICT_SINCE
            )
            # Collected, not deleted yet: many leave the catalog by one transaction.
            going[topic.id] = result
        results.append(result)
    # Looked up once more: what this request held would be freed in one step, when it is answered.
    # Another request may have deleted one of them while this one waited for its turn.
    found = filter(None, map(services.topics.by_id, going))
    gone = {*await services.topics.deletion.perform(found)}
    for topic_id, result in going.items():
        if topic_id not in gone:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = "There is no such topic."
    return DeleteTopicsResponse(responses=results)


def _check_enabled(services: Services, version: int) -> None:
    if not services.config.delete_topic_enable:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= _DELETION_DISABLED_SINCE
            else ErrorCode.INVALID_REQUEST
        )
        raise KafkaError(code, "delete.topic.enable is false.")


def _named_by_both(
    services: Services, named: Collection[tuple[str | None, UUID]]
) -> dict[UUID, str]:
    """Return the topics that are named by their name and, elsewhere, by their id."""
    return {
        topic_id: found.name
        for name, topic_id in named
        if name is None
        and (found := services.topics.by_id(topic_id)) is not None
        and (found.name, ZERO_UUID) in named
    }


def _find(services: Services, asked: DeleteTopicState, context: RequestContext) -> Topic:
    by_id = asked.topic_id != ZERO_UUID
    if by_id == (asked.name is not None):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Give the name of a topic or its id, and not both."
        )
    if asked.name is None:
        topic = services.topics.by_id(asked.topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = services.topics.by_name(asked.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known_as = asked.name if topic is None else topic.name
    may_all = may(services, context, Operation.DELETE, Resource.CLUSTER)
    if known_as is not None and not may_all:
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, known_as)
    if topic is None:
        raise KafkaError(missing, "There is no such topic.")
    if topic.is_internal:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic.name} holds the coordinators' state; it stays."
        )
    if topic.name == PROGRESS_TOPIC:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic.name} names the progress of all queries of Spark's sink; it stays. To begin a"
            " query anew, delete its group, magnetar.spark.QUERY.",
        )
    return topic
