"""IncrementalAlterConfigs (API key 44): change configs one by one (KIP-339).

Versions 0-1.  1: flexible.

Sets and deletes configs of topics, groups, the broker and client metrics subscriptions, appends to
lists and subtracts from them, and sets levels of loggers. The changes are durable when they are
answered (levels last as long as the broker runs), and obeyed from the next batch on. Each resource
stands alone: all of its changes are made, or none. A request of more than 10,000 changes is refused
as a whole.
"""

from __future__ import annotations

from magnetar.apis.authorization import Each, config_target
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.config.changes import Change
from magnetar.runtime.config_changes import alter, changes_of
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security import acls
from wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@handles(
    IncrementalAlterConfigsRequest,
    versions="0-1",
    needs=[Each(acls.Operation.ALTER_CONFIGS, acls.Resource.TOPIC, "resources", config_target)],
    changes_catalog=True,
)
async def incremental_alter_configs(
    services: Services, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    check_changes(sum(len(each.configs) or 1 for each in request.resources))
    asked = await changes_of(
        services.turns,
        request.resources,
        lambda configs: [Change(each.name, each.config_operation, each.value) for each in configs],
    )
    outcomes = await alter(
        services.config_resources,
        services.turns,
        asked,
        context.host,
        replaces=False,
        validate_only=request.validate_only,
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(**outcome._asdict())
            async for outcome in services.turns.each(outcomes)
        ]
    )
