"""DeleteAcls (API key 31): remove the access control lists that filters ask for (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

Needs ALTER on the cluster. SECURITY_DISABLED for each filter without an authorizer. A request of
more than 10,000 filters is POLICY_VIOLATION, one that finds more than 10,000 ACLs INVALID_REQUEST:
nothing is removed. More than 256 ACLs are removed in parts, each of them at once: others have their
turn in between.
"""

from __future__ import annotations

from magnetar.apis.authorization import require
from magnetar.apis.describe_acls import acls_of, filter_of
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import CHANGES_MAX, check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Acl, AclFilter, Operation, Pattern, Permission, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
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
    check_changes(len(request.filters))
    # Most filters name a resource: few rules are about each.
    every = acls.all()
    by_name: dict[str, list[Acl]] = {}
    async for acl in services.turns.each(every):
        by_name.setdefault(acl.name, []).append(acl)
    results: list[DeleteAclsFilterResult] = []
    removed: list[Acl] = []
    async for asked in services.turns.each(request.filters):
        result = DeleteAclsFilterResult(error_message=None)
        results.append(result)
        with refused_in(result):
            wanted = filter_of(asked)
            _check_known(wanted)
            is_about_one = wanted.name is not None and wanted.pattern != Pattern.MATCH
            about = by_name.get(wanted.name or "", []) if is_about_one else every
            async for acl in services.turns.each(about):
                if wanted.matches(acl):
                    result.matching_acls.append(_matching(acl))
                    removed.append(acl)
        if len(removed) > CHANGES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation.",
            )
    async for part in services.turns.pieces(removed):
        acls.remove(part)
    return DeleteAclsResponse(filter_results=results)


def _check_known(wanted: AclFilter) -> None:
    """Raise INVALID_REQUEST for codes that do not exist here.

    A client that sends them is newer, and must not be told that there was nothing to remove.
    DescribeAcls finds nothing by them, as in Kafka.
    """
    try:
        Resource(wanted.resource)
        Pattern(wanted.pattern)
        Operation(wanted.operation)
        Permission(wanted.permission)
    except ValueError as unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(unknown)) from None


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
