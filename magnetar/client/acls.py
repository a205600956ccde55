"""Access control lists of a cluster: describe, create, delete (KIP-11, KIP-290)."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.client.cluster import Client
from magnetar.client.errors import ClientError, check
from magnetar.security.acls import (
    OPERATIONS_OF,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    acl_of,
)
from wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

__all__ = ["Acl", "AclFilter", "Operation", "Pattern", "Permission", "Resource"]


def describe_acls(client: Client, wanted: AclFilter) -> list[Acl]:
    """Return the rules that a filter matches, sorted."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response = client.call(request, DescribeAclsResponse)
    check(response.error_code, "listing ACLs", response.error_message)
    return sorted(_acl(resource, acl) for resource in response.resources for acl in resource.acls)


def create_acls(client: Client, acls: Sequence[Acl]) -> None:
    """Create rules; those that exist already stay.

    Refused for the first that cannot be. ClientError for an operation that its resource does not
    have: brokers store such a rule, but it is taken for a slip here, as by kafka-acls. (It is not
    without effect: WRITE allows DESCRIBE on a group too.)
    """
    for acl in acls:
        has = OPERATIONS_OF[acl.resource]
        if acl.operation is not Operation.ALL and acl.operation not in has:
            names = ", ".join(sorted(each.name for each in has))
            slip = f"{acl.resource.name} has no operation {acl.operation.name}"
            raise ClientError(f"{slip}. It has ALL, {names}.")
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=acl.resource,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )
    response = client.call(request, CreateAclsResponse)
    for acl, result in zip(acls, response.results, strict=True):
        check(result.error_code, str(acl), result.error_message)


def delete_acls(client: Client, wanted: Sequence[AclFilter]) -> list[Acl]:
    """Delete the rules that one of the filters matches, and return them, sorted."""
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource,
                resource_name_filter=each.name,
                pattern_type_filter=each.pattern,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in wanted
        ]
    )
    deleted = set()
    for result in client.call(request, DeleteAclsResponse).filter_results:
        check(result.error_code, "deleting ACLs", result.error_message)
        for each in result.matching_acls:
            acl = _acl(each, each)
            check(each.error_code, str(acl), each.error_message)
            deleted.add(acl)
    return sorted(deleted)


def _acl(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl,
    acl: AclDescription | DeleteAclsMatchingAcl,
) -> Acl:
    """Return the rule that an answer has: what it is about, and what it says."""
    return acl_of(
        resource.resource_type,
        resource.resource_name,
        resource.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
