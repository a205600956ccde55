"""DescribeAcls (API key 29): the access control lists that a filter asks for (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

Needs DESCRIBE on the cluster. SECURITY_DISABLED without an authorizer.
"""

from __future__ import annotations

from magnetar.apis.authorization import require
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import AclFilter, Operation, Resource
from magnetar.storage.acls import Acls
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.delete_acls import DeleteAclsFilter
from wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER = "No authorizer is configured: everyone may do everything."


def acls_of(services: Services) -> Acls:
    """Return the access control lists. Raises SECURITY_DISABLED."""
    if services.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return services.acls


def filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter that a request has. Raises INVALID_REQUEST for one of unknown codes."""
    is_known = all(
        code > 0
        for code in (
            asked.resource_type_filter,
            asked.pattern_type_filter,
            asked.operation,
            asked.permission_type,
        )
    )
    if not is_known:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The filter has UNKNOWN elements.")
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(
    services: Services, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    acls = acls_of(services)
    require(services, context, Operation.DESCRIBE, Resource.CLUSTER)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    asked = filter_of(request)
    async for acl in services.turns.each(acls.all()):
        if not asked.matches(acl):
            continue
        key = (acl.resource, acl.name, acl.pattern)
        resource = resources.setdefault(
            key,
            DescribeAclsResource(
                resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
