"""DeleteAcls (API key 31): remove the access control lists that filters ask for (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

Needs ALTER on the cluster. SECURITY_DISABLED for each filter without an authorizer.
"""

from __future__ import annotations

from magnetar.apis.authorization import require
from magnetar.apis.describe_acls import acls_of, filter_of
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Acl, Operation, Resource
from wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(DeleteAclsRequest, versions="1-3", changes_catalog=True)
async def delete_acls(
    services: Services, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    acls = acls_of(services)
    require(services, context, Operation.ALTER, Resource.CLUSTER)
    results: list[DeleteAclsFilterResult] = []
    removed: list[Acl] = []
    for asked in request.filters:
        result = DeleteAclsFilterResult(error_message=None)
        results.append(result)
        with refused_in(result):
            wanted = filter_of(asked)
            every = services.turns.each(acls.all())
            matching = [acl async for acl in every if wanted.matches(acl)]
            result.matching_acls = list(map(_matching, matching))
            removed += matching
    acls.remove(removed)
    return DeleteAclsResponse(filter_results=results)


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
