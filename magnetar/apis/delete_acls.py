"""DeleteAcls (API key 31): remove rules of who may do what (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

SECURITY_DISABLED for each filter, as Kafka answers where no authorizer is configured.
"""

from __future__ import annotations

from magnetar.apis.describe_acls import NO_AUTHORIZER
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(DeleteAclsRequest, versions="1-3")
async def delete_acls(
    services: Services, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
            )
            for _ in request.filters
        ]
    )
