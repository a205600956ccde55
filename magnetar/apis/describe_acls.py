"""DescribeAcls (API key 29): the rules of who may do what, of which there are none (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

SECURITY_DISABLED, as Kafka answers where no authorizer is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from wire.error_code import ErrorCode
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from magnetar.broker import Broker

NO_AUTHORIZER = "No authorizer is configured: everyone may do everything."


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
