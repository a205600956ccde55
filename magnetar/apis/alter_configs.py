"""AlterConfigs (API key 33): give resources these configs and no others (KIP-133).

Versions 0-2.  2: flexible.

A topic's configs that are not named go back to the broker's. Durable when answered, obeyed from
the next batch on; each resource stands alone. Configs of the broker cannot be changed while it
runs. IncrementalAlterConfigs is its successor.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from magnetar.config_changes import Change, Operation, alter
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    responses = []
    for resource in request.resources:
        response = AlterConfigsResourceResponse(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            await alter(
                broker,
                resource.resource_type,
                resource.resource_name,
                [Change(each.name, Operation.SET, each.value) for each in resource.configs],
                replaces=True,
                validate_only=request.validate_only,
            )
        except KafkaError as refusal:
            response.error_code = refusal.code
            response.error_message = refusal.detail
        responses.append(response)
    return AlterConfigsResponse(responses=responses)
