"""JoinGroup (API key 11): join the next generation of a group.

Versions 0-9.  1: the rebalance timeout (before: the session timeout).  4: a first join is answered
with the member id to join with (KIP-394).  5: static members (KIP-345).  6: flexible.  7: the
protocol type, names may be null (KIP-559).  8: a reason.  9: the leader may be told to skip the
assignment (KIP-814).

The response comes when the generation is formed; it lists the members for the leader alone.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import JoinAnswer, JoinRequest
from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import handles
from magnetar.runtime.groups import new_member_id
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_REBALANCE_TIMEOUT_SINCE = 1
_MEMBER_ID_FIRST_SINCE = 4
_NULL_NAMES_SINCE = 7
_SKIP_ASSIGNMENT_SINCE = 9


_refuse_with_names = mirror(JoinGroupResponse)
_refuse_with_nulls = mirror(JoinGroupResponse, protocol_name=None)


def _refuse(request: JoinGroupRequest, version: int, error: KafkaError) -> Message | None:
    """Refuse a client that may not join. A generation that does not exist has no protocol."""
    refuse = _refuse_with_nulls if version >= _NULL_NAMES_SINCE else _refuse_with_names
    return refuse(request, version, error)


@handles(
    JoinGroupRequest,
    versions="0-9",
    needs=[Whole([Operation.READ], Resource.GROUP, "group_id")],
    refuse=_refuse,
    is_for=OF_GROUP,
)
async def join_group(
    services: Services, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse:
    version = context.version
    try:
        answer = await services.groups.join(
            request.group_id, _join_request(request, context), context.connection
        )
    except KafkaError as refusal:
        log_refused_request(services, context, request, refusal)
        # Not refused by the mirror of the request, which leaves the member's id out: Kafka does so
        # only where a consumer group refuses. A session that is too short or too long is refused
        # before the group is looked for.
        is_refused_by_consumer_group = (
            refusal.code is not ErrorCode.INVALID_SESSION_TIMEOUT
            and services.groups.is_consumer_group(request.group_id)
        )
        member_id = "" if is_refused_by_consumer_group else request.member_id
        answer = JoinAnswer(member_id=member_id, error_code=refusal.code)
    return JoinGroupResponse(
        error_code=answer.error_code,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name or (None if version >= _NULL_NAMES_SINCE else ""),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )


def _join_request(request: JoinGroupRequest, context: RequestContext) -> JoinRequest:
    version = context.version
    session_timeout_ms = request.session_timeout_ms
    has_rebalance_timeout = version >= _REBALANCE_TIMEOUT_SINCE
    return JoinRequest(
        member_id=request.member_id,
        new_member_id=new_member_id(request.group_instance_id or context.client_id),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            # A negative timeout would end the rebalance before it began.
            max(request.rebalance_timeout_ms, 0) if has_rebalance_timeout else session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.client_host,
        # KIP-394: without it each retried first join would leave a member behind.
        must_know_its_id=version >= _MEMBER_ID_FIRST_SINCE,
        can_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
    )
