"""What a request may do: the authorizer's decision, the error of a denied one, and its log line.

Without an authorizer everything is allowed. Each handler says in its own words what a principal
needs; a denied thing is refused like any other, or left out where Kafka leaves it out.
"""

from __future__ import annotations

from magnetar.logging import get_logger
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, Resource
from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import KafkaError

_CODES = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_log = get_logger("kafka.authorizer.logger")


def may(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str = CLUSTER_NAME,
) -> bool:
    """Return whether the client may do this; a denial is not logged."""
    acls = services.acls
    if acls is None:
        return True
    return acls.authorizer.allows(
        context.principal, context.client_host[1:], operation, resource, name
    )


def require(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str = CLUSTER_NAME,
) -> None:
    """Raise the resource's authorization error, and log it, unless the client may do this."""
    if may(services, context, operation, resource, name):
        return
    assert services.acls is not None
    host = context.client_host[1:]
    rule = services.acls.authorizer.decide(context.principal, host, operation, resource, name).rule
    _log.info(
        "denied",
        principal=str(context.principal),
        host=host,
        operation=operation.name,
        resource=f"{resource.name}:LITERAL:{name[:200]}",
        request=API_NAMES[context.api_key],
        rule="none allows it" if rule is None else str(rule),
    )
    raise KafkaError(
        _CODES[resource], f"{operation.name} on {resource.name} {name[:200]} is denied"
    )


def allowed_operations(
    services: Services, context: RequestContext, resource: Resource, name: str = CLUSTER_NAME
) -> int:
    """Return the operations that the client may do, as a bit field (KIP-430)."""
    return sum(
        1 << operation
        for operation in OPERATIONS_OF[resource]
        if may(services, context, operation, resource, name)
    )
