"""CreateAcls (API key 30): add access control lists (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

SECURITY_DISABLED for each of them, as in a Kafka without an authorizer.
"""

from __future__ import annotations

from magnetar.apis.describe_acls import NO_AUTHORIZER
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse


@handles(CreateAclsRequest, versions="1-3")
async def create_acls(
    services: Services, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
