"""IncrementalAlterConfigs (API key 44): change configs one by one (KIP-339).

Versions 0-1.  1: flexible.

SET, DELETE, APPEND and SUBTRACT (of lists) of topics' configs: durable when answered, and obeyed
from the next batch on. Each resource stands alone, all of its changes or none. Configs of the
broker cannot be changed while it runs; loggers, client metrics and groups have none here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from magnetar.config_changes import Change, alter
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker


@handles(IncrementalAlterConfigsRequest, versions="0-1")
async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
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
                [Change(each.name, each.config_operation, each.value) for each in resource.configs],
                replaces=False,
                validate_only=request.validate_only,
            )
        except KafkaError as refusal:
            response.error_code = refusal.code
            response.error_message = refusal.detail
        responses.append(response)
    return IncrementalAlterConfigsResponse(responses=responses)
