"""Metadata (API key 3): the brokers, the topics and the leaders of their partitions.

Versions 0-13.  0: an empty list asks for all topics.  1: null asks for all, an empty list for none.
4: whether missing topics may be created.  8: authorized operations (KIP-430).  9: flexible.  10:
the response has topic ids.  12: the request may name topics by id.  13: a top-level error code
(KIP-1102).

A missing topic is created where the client allows it and auto.create.topics.enable is on; the same
response has it already. One request creates no more than 10,000 partitions: for further topics the
answer is LEADER_NOT_AVAILABLE, and clients ask again. The brokers' addresses are those that the
listener of this connection advertises.
"""

from __future__ import annotations

from magnetar.apis.authorization import allowed_operations, cluster_operations, may, require
from magnetar.apis.leaders import tell_replicas
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.runtime.auto_creation import AutoCreation
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import leader_id
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import check_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import ZERO_UUID
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_TOPIC_IDS_SINCE = 12


@handles(MetadataRequest, versions="0-13", refuse=mirror(MetadataResponse, at_each=True))
async def metadata(
    services: Services, request: MetadataRequest, context: RequestContext
) -> MetadataResponse:
    each = services.turns.each
    if _asks_for_all(request, context.version):
        topics = [
            await _describe(services, topic, request, context)
            async for topic in each(services.topics.all())
            # What the client may not know of is left out.
            if may(services, context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        ]
    else:
        # A topic named twice is answered once: a small request must not ask for a large response.
        distinct = {}
        async for asked in each(request.topics or []):
            _check_topic_id(asked, context.version)
            distinct[asked.name, asked.topic_id] = asked
        creation = AutoCreation(services.topics)
        topics = [
            await _answer(services, asked, request, context, creation)
            async for asked in each(distinct.values())
        ]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in services.nodes.addresses(context.connection.listener)
        ],
        cluster_id=services.node.cluster_id,
        controller_id=services.nodes.controller_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(services, context)
    return response


def _asks_for_all(request: MetadataRequest, version: int) -> bool:
    # Version 0 has no null: an empty list stood for all topics.
    return request.topics is None or (version == 0 and not request.topics)


def _check_topic_id(asked: MetadataRequestTopic, version: int) -> None:
    # Versions 10 and 11 have a field for the id, but Kafka does not look a topic up by it there.
    if version < _TOPIC_IDS_SINCE and (asked.name is None or asked.topic_id != ZERO_UUID):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"topic ids are asked for from version {_TOPIC_IDS_SINCE} on, not in {version}",
        )


async def _answer(
    services: Services,
    asked: MetadataRequestTopic,
    request: MetadataRequest,
    context: RequestContext,
    creation: AutoCreation,
) -> MetadataResponseTopic:
    try:
        topic = await _find(services, asked, request, context, creation)
        return await _describe(services, topic, request, context)
    except KafkaError as refusal:
        # A topic asked for by its id is answered by its id, whatever name stands beside it.
        name = asked.name if asked.topic_id == ZERO_UUID else None
        refused = MetadataResponseTopic(error_code=refusal.code, name=name, topic_id=asked.topic_id)
        if name is not None and refusal.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            refused.is_internal = services.topics.is_internal(name)
            if request.include_topic_authorized_operations:
                refused.topic_authorized_operations = allowed_operations(
                    services, context, Resource.TOPIC, name
                )
        return refused


async def _find(
    services: Services,
    asked: MetadataRequestTopic,
    request: MetadataRequest,
    context: RequestContext,
    creation: AutoCreation,
) -> Topic:
    if asked.topic_id != ZERO_UUID or asked.name is None:
        topic = services.topics.by_id(asked.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, str(asked.topic_id))
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        return topic
    require(services, context, Operation.DESCRIBE, Resource.TOPIC, asked.name)
    topic = services.topics.by_name(asked.name)
    if topic is not None:
        return topic
    # Before anything is created: an illegal name is refused as such, also where nothing may be.
    check_name(asked.name)
    if not (request.allow_auto_topic_creation and services.config.auto_create_topics_enable):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, asked.name)
    if not may(services, context, Operation.CREATE, Resource.CLUSTER):
        require(services, context, Operation.CREATE, Resource.TOPIC, asked.name)
    try:
        topic = await creation.ensure(asked.name)
    except KafkaError as refusal:
        # The answer has a code alone: why no topic comes into being is for the log to tell.
        log_refusal(services, context, refusal, topic=asked.name)
        raise
    await services.nodes.tell_changes()
    return topic


async def _describe(
    services: Services, topic: Topic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    own_id = services.node.id
    # One list for all partitions of a node. Each has one replica, unless `tell_replicas` adds more.
    nodes: dict[int, list[int]] = {}
    partitions: list[MetadataResponsePartition] = []
    # A copy: the topic may change between two pieces.
    async for piece in services.turns.pieces(tuple(topic.partitions)):
        described = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=(node_id := leader_id(one, own_id)),
                leader_epoch=one.leader_epoch,
                replica_nodes=(replicas := nodes.setdefault(node_id, [node_id])),
                isr_nodes=replicas,
            )
            for index, one in enumerate(piece, len(partitions))
        ]
        tell_replicas(services, topic, described)
        partitions += described
    response = MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions
    )
    if request.include_topic_authorized_operations:
        response.topic_authorized_operations = allowed_operations(
            services, context, Resource.TOPIC, topic.name
        )
    return response
