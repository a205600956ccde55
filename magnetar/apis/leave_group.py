"""LeaveGroup (API key 13): remove members; the others rebalance at once.

Versions 0-5.  0-2: one member, whose error is at the top.  3: many members, each with its own
error; static ones may be named by instance id alone (KIP-345).  4: flexible.  5: a reason.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import LeavingMember
from magnetar.apis.authorization import Whole
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_MANY_SINCE = 3


@handles(
    LeaveGroupRequest,
    versions="0-5",
    needs=[Whole([Operation.READ], Resource.GROUP, "group_id")],
    is_for=OF_GROUP,
)
async def leave_group(
    services: Services, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    if context.version < _MANY_SINCE:
        # The versions of one member have no list for its error.
        (code,) = await services.groups.leave(request.group_id, [LeavingMember(request.member_id)])
        return LeaveGroupResponse(error_code=code)
    leaving: list[LeavingMember] = []
    async for named in services.turns.pieces(request.members):
        leaving += [LeavingMember(each.member_id, each.group_instance_id) for each in named]
    # All of them in one step: the others rebalance once.
    codes = await services.groups.leave(request.group_id, leaving)
    response = LeaveGroupResponse()
    async for piece in services.turns.pieces(range(len(leaving))):
        response.members += [
            MemberResponse(
                member_id=leaving[position].member_id,
                group_instance_id=leaving[position].group_instance_id,
                error_code=codes[position],
            )
            for position in piece
        ]
    return response
