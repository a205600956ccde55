"""SyncGroup (API key 14): the leader sends the assignment, every member receives its part.

Versions 0-5.  3: static members (KIP-345).  4: flexible.  5: protocol type and name are sent, and
checked (KIP-559).

The response comes once the leader's request has come and the generation is durable.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import SyncRequest
from magnetar.apis.authorization import Whole
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_SINCE = 5


@handles(
    SyncGroupRequest,
    versions="0-5",
    needs=[Whole([Operation.READ], Resource.GROUP, "group_id")],
    is_for=OF_GROUP,
)
async def sync_group(
    services: Services, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse:
    # KIP-559: null would evade the check that the version was made for.
    if context.version >= _PROTOCOL_SINCE and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol type or the protocol name is null"
        )
    answer = await services.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            generation_id=request.generation_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={part.member_id: part.assignment for part in request.assignments},
        ),
        context.connection,
    )
    return SyncGroupResponse(
        error_code=answer.error_code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
