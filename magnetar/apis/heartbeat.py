"""Heartbeat (API key 12): keep a member alive, and tell it whether it has to join again.

Versions 0-4.  3: static members (KIP-345).  4: flexible.

Nothing is written.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(
    HeartbeatRequest,
    versions="0-4",
    needs=[Whole([Operation.READ], Resource.GROUP, "group_id")],
    is_for=OF_GROUP,
)
def heartbeat(
    services: Services, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse:
    services.groups.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse()
