"""CreateAcls (API key 30): add access control lists (KIP-140).

Versions 1-3.  2: flexible.  3: resources of type user (KIP-373).

Needs ALTER on the cluster. SECURITY_DISABLED for each of them without an authorizer. An ACL that
exists already is success. A host may be a network, such as 10.0.0.0/8. A name, principal or host of
more than 1 KB is POLICY_VIOLATION. A request of more than 10,000 ACLs is refused as a whole. One of
more than 256 is stored in parts, each of them at once: others have their turn in between.
"""

from __future__ import annotations

from magnetar.apis.authorization import require
from magnetar.apis.describe_acls import acls_of
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Acl, Operation, Resource, acl_of, check_acl
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


@handles(CreateAclsRequest, versions="1-3", changes_catalog=True)
async def create_acls(
    services: Services, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    acls = acls_of(services)
    require(services, context, Operation.ALTER, Resource.CLUSTER)
    check_changes(len(request.creations))
    results: list[AclCreationResult] = []
    valid: list[Acl] = []
    async for creation in services.turns.each(request.creations):
        result = AclCreationResult(error_message=None)
        results.append(result)
        with refused_in(result):
            acl = _acl(creation)
            acls.check_texts(acl)
            valid.append(acl)
    # Before the first part: all of them are refused, or none.
    acls.check_room(valid)
    async for part in services.turns.pieces(valid):
        acls.add(part)
    return CreateAclsResponse(results=results)


def _acl(creation: AclCreation) -> Acl:
    try:
        acl = acl_of(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        check_acl(acl)
    except ValueError as invalid:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(invalid)) from None
    return acl
