"""DescribeAcls (API key 29): the access control lists, of which there are none (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

SECURITY_DISABLED, as in a Kafka without an authorizer.
"""

from __future__ import annotations

from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No authorizer is configured: everyone may do everything."


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(
    services: Services, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
