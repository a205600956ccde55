"""DescribeGroups (API key 15): the state and the members of groups.

Versions 0-6.  3: authorized operations.  4: instance ids.  5: flexible.  6: GROUP_ID_NOT_FOUND for
a group that does not exist (before: state Dead, no error; KIP-1043).

The metadata of members and their assignments are shown while the group is stable.
"""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup, GroupState, Member
from magnetar.apis.authorization import Each, allowed_operations
from magnetar.apis.mirror import mirror
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_SINCE = 6


@handles(
    DescribeGroupsRequest,
    versions="0-6",
    refuse=mirror(DescribeGroupsResponse, error_message=None),
    needs=[Each(Operation.DESCRIBE, Resource.GROUP, "groups")],
)
async def describe_groups(
    services: Services, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    described = []
    # Each once, unlike in Kafka: a small request could name a large group a hundred thousand times.
    groups = list(dict.fromkeys(request.groups))
    async for group_id in services.turns.each(groups):
        group = _describe(services, group_id, context.version)
        described.append(group)
        if group.error_code == ErrorCode.NONE and request.include_authorized_operations:
            group.authorized_operations = allowed_operations(
                services, context, Resource.GROUP, group.group_id
            )
    # A state is not shown before the records that led to it are durable.
    await services.groups.shards.durable(groups)
    return DescribeGroupsResponse(groups=described)


def _describe(services: Services, group_id: str, version: int) -> DescribedGroup:
    try:
        return _described(services.groups.find(group_id))
    except KafkaError as refusal:
        described = DescribedGroup(group_id=group_id)
        is_unknown = refusal.code == ErrorCode.GROUP_ID_NOT_FOUND
        if is_unknown:
            described.group_state = GroupState.DEAD.value
        # Clients before KIP-1043 know no error here: they read Dead as no group.
        if version >= _NOT_FOUND_SINCE or not is_unknown:
            described.error_code = refusal.code
        if version >= _NOT_FOUND_SINCE:
            described.error_message = refusal.detail
        return described


def _described(group: ClassicGroup) -> DescribedGroup:
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        # A rebalance under way may choose another protocol.
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[_member(group, member, stable) for member in group.members.values()],
    )


def _member(group: ClassicGroup, member: Member, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment,
    )
