"""CreateTopics (API key 19): create topics, or check that they could be.

Versions 2-7.  4: -1 stands for the broker's defaults.  5: flexible, the created topic's settings in
the answer (KIP-525).  7: its topic id.

Each topic stands alone and is durable when it is answered. There is one broker: replication factors
above 1 are INVALID_REPLICATION_FACTOR, replicas on others INVALID_REPLICA_ASSIGNMENT, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from magnetar.apis.replica_assignments import check_replicas
from magnetar.config.described import describe_setting
from magnetar.config.topic import TopicConfig
from magnetar.storage.topic_counts import BROKER_DEFAULT, check_total
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.storage.catalog import TopicRow
    from magnetar.storage.topics import Topic


@handles(CreateTopicsRequest, versions="2-7")
async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    _check_total(broker, request.topics)
    named = Counter(topic.name for topic in request.topics)
    distinct = {topic.name: topic for topic in request.topics}
    results = []
    for name, topic in distinct.items():
        try:
            if named[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(await _create(broker, topic, validate_only=request.validate_only))
        except KafkaError as refusal:
            results.append(
                CreatableTopicResult(
                    name=name, error_code=refusal.code, error_message=refusal.detail
                )
            )
    return CreateTopicsResponse(topics=results)


def _check_total(broker: Broker, asked: list[CreatableTopic]) -> None:
    """Refuse a request for too many partitions, as `check_total`."""
    total = 0
    for topic in asked:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == BROKER_DEFAULT:
            total += broker.config.num_partitions
        else:
            total += max(topic.num_partitions, 0)
    check_total(total)


async def _create(
    broker: Broker, asked: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    partition_count, replication_factor = _counts(broker, asked)
    configs = {config.name: config.value for config in asked.configs}
    row = broker.topics.check_creation(asked.name, partition_count, replication_factor, configs)
    if validate_only:
        return _created(broker, row, row.partition_count)
    topic = await broker.topics.create_in_turns(row)
    return _created(broker, topic, len(topic.partitions))


def _created(broker: Broker, topic: Topic | TopicRow, partition_count: int) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        error_message=None,
        num_partitions=partition_count,
        replication_factor=topic.replication_factor,
        configs=_configs(broker, topic.configs),
    )


def _counts(broker: Broker, asked: CreatableTopic) -> tuple[int, int]:
    """Return partition count and replication factor, from the assignment where one is given."""
    if not asked.assignments:
        return asked.num_partitions, asked.replication_factor
    if asked.num_partitions != BROKER_DEFAULT or asked.replication_factor != BROKER_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A replica assignment leaves no choice: partition count and replication factor"
            " must be -1.",
        )
    indexes = sorted(assignment.partition_index for assignment in asked.assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Partitions must be numbered from 0 without gaps.",
        )
    for assignment in asked.assignments:
        check_replicas(broker.node_id, assignment.broker_ids)
    return len(indexes), 1


def _configs(broker: Broker, own: dict[str, str]) -> list[CreatableTopicConfigs]:
    """Describe a topic's settings, its own ones as they were given, as in Kafka."""
    described = []
    for name in TopicConfig.settings:
        found = describe_setting(name, own, broker.config)
        text = own.get(name, found.text)
        described.append(CreatableTopicConfigs(name=name, value=text, config_source=found.source))
    return described
