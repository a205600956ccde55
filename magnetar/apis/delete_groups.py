"""DeleteGroups (API key 42): delete groups without members, and all their offsets.

Versions 0-3.  2: flexible.  3: a message beside each error; Kafka leaves it null for these errors.

Each group has its own error: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.  KIP-229, KIP-1331.
"""

from __future__ import annotations

from magnetar.apis.authorization import Each
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.group_shards import RunningGroupShard
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


@handles(
    DeleteGroupsRequest,
    versions="0-3",
    needs=[Each(Operation.DELETE, Resource.GROUP, "groups_names")],
)
async def delete_groups(
    services: Services, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    results = []
    deleted: list[tuple[DeletableGroupResult, RunningGroupShard, int]] = []
    # A group named twice would be answered as deleted, and then as unknown.
    async for group_id in services.turns.each(dict.fromkeys(request.groups_names)):
        result = DeletableGroupResult(group_id=group_id)
        # A group may have ten thousand offsets, which go in one step.
        await services.turns.begin()
        with refused_in(result):
            deleted.append((result, *services.groups.delete(group_id)))
        results.append(result)
    # Only now: one sync serves many of them.
    async for result, shard, end_offset in services.turns.each(deleted):
        with refused_in(result):
            await shard.durable(end_offset)
    return DeleteGroupsResponse(results=results)
