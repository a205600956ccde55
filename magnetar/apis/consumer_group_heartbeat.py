"""ConsumerGroupHeartbeat (API key 68): keep a member in its consumer group, and assign to it.

Versions 0-1.  1: subscription by regular expression; members make their ids themselves (KIP-1082).

Epoch 0 joins, -1 leaves, -2 leaves for a while (static members). A field that is null, or -1, has
not changed. The response has the assignment where it has changed, and is sent when the change is
durable. A heartbeat that changes nothing writes nothing.  KIP-848.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID, uuid4

from coordinator.groups.consumer.member import Assigned, Owned
from coordinator.groups.consumer.requests import HeartbeatRequest
from magnetar.apis.authorization import Whole, may, require
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
    TopicPartitions,
)

_PROTOCOL = "consumer"


@handles(
    ConsumerGroupHeartbeatRequest,
    versions="0-1",
    needs=[Whole([Operation.READ], Resource.GROUP, "group_id")],
    is_for=OF_GROUP,
)
async def consumer_group_heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    check_enabled(services)
    async for name in services.turns.each(request.subscribed_topic_names or ()):
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, name)
    may_describe = partial(may, services, context, Operation.DESCRIBE, Resource.TOPIC)
    owned = await _owned(services, request.topic_partitions)
    answer = await services.groups.consumer.heartbeat(
        _heartbeat(services, request, owned, context), context.version, may_describe
    )
    return ConsumerGroupHeartbeatResponse(
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        # Null says that nothing has changed; an empty list would take everything from the member.
        assignment=None if answer.assignment is None else _assignment(answer.assignment),
    )


def check_enabled(services: Services) -> None:
    """Raise UNSUPPORTED_VERSION unless group.coordinator.rebalance.protocols names the protocol."""
    if _PROTOCOL not in services.config.group_coordinator_rebalance_protocols:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled."
        )


def _heartbeat(
    services: Services,
    request: ConsumerGroupHeartbeatRequest,
    owned: Owned | None,
    context: RequestContext,
) -> HeartbeatRequest:
    names = request.subscribed_topic_names
    return HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        # For version 0, whose members do not make their ids. Drawn here: the rules are pure.
        new_member_id="" if request.member_id else str(uuid4()),
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id or "",
        client_host=context.client_host,
        rights_version=0 if services.acls is None else services.acls.topics_version,
    )


async def _owned(services: Services, topics: list[TopicPartitions] | None) -> Owned | None:
    """Return what the member says it owns: a client may name tens of thousands, in any way."""
    if topics is None:
        return None
    owned: dict[UUID, set[int]] = {}
    async for piece in services.turns.pieces(topics):
        for topic in piece:
            # A topic may be listed often. Without the union the member would seem to have given
            # the first part back.
            owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {
        topic_id: frozenset(partitions)
        async for topic_id, partitions in services.turns.each(owned.items())
    }


def _assignment(assigned: Assigned) -> Assignment:
    return Assignment(
        topic_partitions=[
            ResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )
