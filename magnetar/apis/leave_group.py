"""LeaveGroup (API key 13): members go, and the rest rebalances at once.

Versions 0-5.  0-2: one member, its error on top.  3: many members, each with its own error; static
ones may be named by instance id alone (KIP-345).  4: flexible.  5: a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.groups.classic.requests import LeavingMember
from magnetar.apis.registry import RequestContext, handles
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from magnetar.broker import Broker

_MANY_SINCE = 3


@handles(LeaveGroupRequest, versions="0-5")
async def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    if context.version < _MANY_SINCE:
        (code,) = await broker.groups.leave(request.group_id, [LeavingMember(request.member_id)])
        return LeaveGroupResponse(error_code=code)
    codes = await broker.groups.leave(
        request.group_id,
        [LeavingMember(member.member_id, member.group_instance_id) for member in request.members],
    )
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
            for member, code in zip(request.members, codes, strict=True)
        ]
    )
