"""AlterConfigs (API key 33): replace all configs of resources (KIP-133).

Versions 0-2.  2: flexible.

A config of a topic, a group, the broker or a client metrics subscription that the request does not
name falls back to what it inherits. The changes are durable when they are answered, and obeyed from
the next batch on; each resource stands alone. A request of more than 10,000 configs is refused as a
whole. Levels of loggers are changed by IncrementalAlterConfigs alone.
"""

from __future__ import annotations

from magnetar.apis.authorization import Each, config_target
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.config.changes import Change, Operation
from magnetar.runtime.config_changes import alter, changes_of
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security import acls
from wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(
    AlterConfigsRequest,
    versions="0-2",
    needs=[Each(acls.Operation.ALTER_CONFIGS, acls.Resource.TOPIC, "resources", config_target)],
    changes_catalog=True,
)
async def alter_configs(
    services: Services, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    check_changes(sum(len(each.configs) or 1 for each in request.resources))
    asked = await changes_of(
        services.turns,
        request.resources,
        lambda configs: [Change(each.name, Operation.SET, each.value) for each in configs],
    )
    # `replaces`: configs that the request leaves out are forgotten. A client that knows only some
    # of them uses IncrementalAlterConfigs (KIP-339).
    outcomes = await alter(
        services.config_resources,
        services.turns,
        asked,
        context.host,
        replaces=True,
        validate_only=request.validate_only,
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(**outcome._asdict())
            async for outcome in services.turns.each(outcomes)
        ]
    )
