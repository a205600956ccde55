"""AlterConfigs (API key 33): give resources these configs and no others (KIP-133).

Versions 0-2.  2: flexible.

Configs of a topic, a group, the broker or a client metrics subscription that are not named go back
to what is above them. Durable when answered, obeyed from the next batch on; each resource stands
alone. Levels of loggers are changed by its successor alone, IncrementalAlterConfigs.
"""

from __future__ import annotations

from magnetar.apis.registry import handles
from magnetar.runtime.config_changes import Change, Operation, ResourceChanges, alter
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(
    services: Services, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    asked = [
        ResourceChanges(
            resource.resource_type,
            resource.resource_name,
            [Change(each.name, Operation.SET, each.value) for each in resource.configs],
        )
        for resource in request.resources
    ]
    outcomes = await alter(
        services.config_resources, asked, replaces=True, validate_only=request.validate_only
    )
    return AlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(**outcome._asdict()) for outcome in outcomes]
    )
