"""CreateTopics (API key 19): create topics, or check that they could be.

Versions 2-7.  4: -1 stands for the broker's defaults.  5: flexible; the response has the settings
of the created topic (KIP-525).  6: THROTTLING_QUOTA_EXCEEDED.  7: the response has its topic id.

A request may make 10,000 partitions, and 10,000 topics, partitions and configs in all: one for more
is refused as a whole. Each topic stands alone and is durable when it is answered. A cluster has as
many replicas as it has nodes, which live or have lived. Where all data is on one disk there is one,
as in a Kafka of one broker. More are INVALID_REPLICATION_FACTOR; replicas on brokers that do not
exist, or that are all gone, are INVALID_REPLICA_ASSIGNMENT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from magnetar.apis.authorization import Each, may
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.config.described import ConfigSource, TopicSettings
from magnetar.config.topic import listed_settings
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.replicas import Replicas
from magnetar.storage.topic import Topic, in_parts
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

#: Since this version clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_SINCE = 6
#: Partitions of topics that are created by one transaction: others wait for the catalog so long.
_CREATED_TOGETHER = 64


@handles(
    CreateTopicsRequest,
    versions="2-7",
    needs=[Each(Operation.CREATE, Resource.TOPIC, "topics", or_cluster=Operation.CREATE)],
    changes_catalog=True,
)
async def create_topics(
    services: Services, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    # Before any topic is created: a request for too much is refused as a whole.
    await _check_total(services, request.topics)
    named = Counter(topic.name for topic in request.topics)
    # As in Kafka: a topic named twice is refused once, and others of the request are created.
    distinct = {topic.name: topic for topic in request.topics}
    results = {name: CreatableTopicResult(name=name, error_message=None) for name in distinct}
    shown = _ShownConfigs(services)
    rows: list[TopicRow] = []
    async for name, topic in services.turns.each(distinct.items()):
        result = results[name]
        with refused_in(result):
            if named[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            row = await _checked(services, context, topic)
            if request.validate_only:
                # The id in the response is a fresh one, which no topic will ever have.
                _fill(result, row, row.partition_count, shown)
            else:
                rows.append(row)
    for part in in_parts(((row, row.partition_count) for row in rows), _CREATED_TOGETHER):
        for row, outcome in zip(part, await services.topics.create_together(part), strict=True):
            await _tell(services, results[row.name], outcome, shown)
    async for name, result in services.turns.each(results.items()):
        if not may(services, context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            _hide_configs(result)
    return CreateTopicsResponse(topics=[*results.values()])


def _hide_configs(result: CreatableTopicResult) -> None:
    """Leave out the configs, for a client that may create a topic but not describe them."""
    if result.error_code == ErrorCode.NONE:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = -1
        result.configs = []


async def _check_total(services: Services, asked: list[CreatableTopic]) -> None:
    """Refuse a request for too much. Raises as `check_total` and `check_changes`."""
    total = config_count = 0
    async for topic in services.turns.each(asked):
        config_count += len(topic.configs)
        # What the request would make, where its counts are valid; `new_row` looks at them.
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == BROKER_DEFAULT:
            total += services.config.num_partitions
        else:
            # A negative count is refused later, alone. Until then it must not make room for others.
            total += max(topic.num_partitions, 0)
    check_total(total)
    check_changes(len(asked) + total + config_count)


async def _checked(services: Services, context: RequestContext, asked: CreatableTopic) -> TopicRow:
    """Return the topic that is to be created. `validate_only` and a creation share every check, so
    that they refuse the same."""
    # A client that is told "already exists" goes on to use the topic.
    await services.topics.index.until_made(asked.name)
    configs = {config.name: config.value for config in asked.configs}
    # Kafka looks at the name and the configs first.
    services.topics.check_new(asked.name, configs)
    partition_count, replication_factor, assigned = _counts(services, asked)
    row = services.topics.new_row(
        asked.name, partition_count, replication_factor, configs, assigned
    )
    # As in Kafka: what is only checked counts too.
    services.quotas.charge_mutation(
        context, row.partition_count, is_strict=context.version >= _STRICT_SINCE
    )
    return row


async def _tell(
    services: Services,
    result: CreatableTopicResult,
    outcome: Topic | KafkaError,
    shown: _ShownConfigs,
) -> None:
    """Say in the result what became of a creation."""
    with refused_in(result):
        if isinstance(outcome, KafkaError):
            # Another request may have begun to create the topic since `_checked`.
            await services.topics.index.until_made(result.name)
            raise outcome
        _fill(result, outcome, len(outcome.partitions), shown)


def _fill(
    result: CreatableTopicResult,
    topic: Topic | TopicRow,
    partition_count: int,
    shown: _ShownConfigs,
) -> None:
    result.topic_id = topic.id
    result.num_partitions = partition_count
    result.replication_factor = topic.replication_factor
    result.configs = shown.of(topic.configs)


def _counts(services: Services, asked: CreatableTopic) -> tuple[int, int, list[Replicas]]:
    """Return partition count, replication factor and replicas, from the assignment where one is
    given; no replicas where none is."""
    if not asked.assignments:
        return asked.num_partitions, asked.replication_factor, []
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
    factor: int | None = None
    assigned = {}
    for one in asked.assignments:
        replicas = services.nodes.check_assignment(one.broker_ids, factor)
        assigned[one.partition_index] = replicas
        factor = len(replicas)
    in_order = [assigned[index] for index in indexes]
    return len(indexes), len(in_order[0]), in_order


class _ShownConfigs:
    """The settings in the response. Topics share the entries of those that they inherit."""

    def __init__(self, services: Services) -> None:
        self._settings = TopicSettings(services.config)
        self._inherited: dict[str, CreatableTopicConfigs] = {}

    def of(self, own: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        """Return the settings of a topic with `own` ones, which are shown as they were written.

        In the order of their names, as in Kafka.
        """
        if not self._inherited:
            for name in sorted(listed_settings()):
                text, source, _ = self._settings.inherited(name)
                self._inherited[name] = _shown(name, text, source)
        if not own:
            return [*self._inherited.values()]
        return [
            _shown(name, own[name], ConfigSource.TOPIC_CONFIG)
            if name in own
            else self._inherited[name]
            for name in sorted(listed_settings(own))
        ]


def _shown(name: str, text: str | None, source: ConfigSource) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(name=name, value=text, config_source=source)
