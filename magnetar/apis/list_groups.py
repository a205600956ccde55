"""ListGroups (API key 16): every group, or those of some states and types.

Versions 0-5.  3: flexible.  4: the state, and a filter for it (KIP-518).  5: the type, and a filter
for it (KIP-848).

Filters ignore case. The list waits for shards that move to this node, and is
COORDINATOR_LOAD_IN_PROGRESS if they take too long.
"""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.consumer.consumer_protocol import CONSUMER
from coordinator.groups.consumer.group import ConsumerGroup
from magnetar.apis.authorization import may
from magnetar.apis.partitions_named import shards_of
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_CLASSIC, _CONSUMER = "classic", "consumer"


@handles(ListGroupsRequest, versions="0-5", is_for=shards_of(CONSUMER_OFFSETS))
async def list_groups(
    services: Services, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    services.nodes.check_shards(CONSUMER_OFFSETS)
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    may_all = may(services, context, Operation.DESCRIBE, Resource.CLUSTER)
    listed = [
        group
        async for group in services.turns.each(map(_listed, services.groups.all()))
        if (may_all or may(services, context, Operation.DESCRIBE, Resource.GROUP, group.group_id))
        and (not states or group.group_state.lower() in states)
        and (not types or group.group_type in types)
    ]
    # A group is not shown before the records that made it what it is are durable.
    await services.groups.shards.durable([group.group_id for group in listed])
    return ListGroupsResponse(groups=listed)


def _listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or "",
        group_state=group.state.value,
        group_type=_CONSUMER if isinstance(group, ConsumerGroup) else _CLASSIC,
    )
