"""Heartbeat (API key 12): a member is alive; the answer says whether it has to join again.

Versions 0-4.  3: static members (KIP-345).  4: flexible.  Nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from magnetar.broker import Broker


@handles(HeartbeatRequest, versions="0-4")
async def heartbeat(
    broker: Broker, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse:
    broker.groups.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse()
