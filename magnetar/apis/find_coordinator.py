"""FindCoordinator (API key 10): the broker that coordinates a group or a transactional id.

Versions 0-6.  1: transactional ids beside groups.  3: flexible.  4: many keys at once.  6: share
groups (KIP-932), whose state coordinator does not exist here: INVALID_REQUEST, as in a Kafka
without them.

This broker coordinates all of them. The topic behind a coordinator is created when the coordinator
is first asked for.
"""

from __future__ import annotations

from magnetar.apis.mirror import mirror
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_TOPICS = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
_KEYS_SINCE = 4


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
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"coordinators of type {request.key_type} do not exist"
        )
    # The next request of the client goes to the coordinator, which needs its topic then.
    services.topics.ensure_internal(topic)
    # The address that this listener advertises: the client may not reach those of the others.
    listener = context.connection.listener
    host, port = listener.advertised_host, listener.advertised_port
    if context.version < _KEYS_SINCE:
        return FindCoordinatorResponse(node_id=services.node.id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=services.node.id, host=host, port=port)
            async for key in services.turns.each(request.coordinator_keys)
        ]
    )
