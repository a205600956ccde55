"""FindCoordinator (API key 10): the broker that coordinates a group or a transactional id.

Versions 0-6.  1: transactional ids beside groups.  3: flexible.  4: many keys at once.  6: share
groups (KIP-932), whose state coordinator does not exist here: INVALID_REQUEST, as in a Kafka
without them, for a client that may ask for it (CLUSTER_ACTION).

The coordinator is the node that leads the partition to which the key hashes. The topic behind a
coordinator is created when the coordinator is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.apis.authorization import require
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.nodes import Address
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_TOPICS = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
_RESOURCES = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}
_KEYS_SINCE = 4
#: Kafka's words for no error, which it tells before version 4 only.
_NO_ERROR = "NONE"
#: The type of coordinator of a share group's state.
_SHARE = 2
_SHARE_SINCE = 6


@handles(
    FindCoordinatorRequest,
    versions="0-6",
    refuse=mirror(FindCoordinatorResponse, node_id=-1, port=-1),
)
async def find_coordinator(
    services: Services, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    topic = _TOPICS.get(request.key_type)
    if topic is None:
        if request.key_type == _SHARE and context.version >= _SHARE_SINCE:
            require(services, context, Operation.CLUSTER_ACTION, Resource.CLUSTER)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"coordinators of type {request.key_type} do not exist"
        )
    resource = _RESOURCES[request.key_type]
    if context.version < _KEYS_SINCE:
        require(services, context, Operation.DESCRIBE, resource, request.key)
    # The next request of the client goes to the coordinator, which needs its topic then.
    services.topics.ensure_internal(topic)
    nodes = services.nodes
    node_of = (nodes.node_of_group, nodes.node_of)[request.key_type]
    # The addresses that this listener advertises: the client may reach no others.
    addresses = {each[0]: each for each in nodes.addresses(context.connection.listener)}
    if context.version < _KEYS_SINCE:
        node_id, host, port = _address(addresses, node_of(request.key))
        return FindCoordinatorResponse(
            error_message=_NO_ERROR, node_id=node_id, host=host, port=port
        )
    coordinators = []
    async for key in services.turns.each(request.coordinator_keys):
        found = Coordinator(key=key, node_id=-1, port=-1)
        with refused_in(found):
            require(services, context, Operation.DESCRIBE, resource, key)
            node_id, host, port = _address(addresses, node_of(key))
            found = Coordinator(key=key, node_id=node_id, host=host, port=port)
        coordinators.append(found)
    return FindCoordinatorResponse(coordinators=coordinators)


def _address(addresses: Mapping[int, Address], node_id: int) -> tuple[int, str, int]:
    """Return where a coordinator is. Raises COORDINATOR_NOT_AVAILABLE."""
    found = addresses.get(node_id)
    if found is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"node {node_id} is gone; another one takes over"
        )
    return found[:3]
