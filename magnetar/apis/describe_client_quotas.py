"""DescribeClientQuotas (API key 48): quotas of users, client ids and addresses (KIP-546).

Versions 0-1.  1: flexible.

The entities that match every component of the filter; a strict filter matches no entity of more
components than it has.
"""

from __future__ import annotations

from operator import itemgetter

from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.client_quotas import CLIENT_ID, IP, USER, Component, having, order
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_EXACT, _DEFAULT, _ANY = range(3)


@handles(
    DescribeClientQuotasRequest,
    versions="0-1",
    # Null beside the error: an empty list would say that no entity matches.
    refuse=mirror(DescribeClientQuotasResponse, entries=None),
    needs=[Whole([Operation.DESCRIBE_CONFIGS], Resource.CLUSTER)],
)
async def describe_client_quotas(
    services: Services, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    wanted = _components(request.components)
    # Before the copy of all: else each of a hundred requests that come at once would hold one.
    await services.turns.begin()
    found = [
        (order(each), each)
        async for some in services.turns.pieces(services.client_quotas.all())
        for each in having(some, wanted, strict=request.strict)
    ]
    # Some milliseconds for ten thousand, all at once.
    found.sort(key=itemgetter(0))
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=values[key]) for key in sorted(values)],
            )
            async for some in services.turns.pieces(found)
            for _, (entity, values) in some
        ],
    )


def _components(asked: list[ComponentData]) -> list[Component]:
    """Return the filter. Raises INVALID_REQUEST, UNSUPPORTED_VERSION for an unknown type."""
    components: list[Component] = []
    types: set[str] = set()
    for each in asked:
        # Two filters of one type would contradict each other. As they come: of three types, no
        # more than three components are looked at, however many there are.
        if each.entity_type in types:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "A type appears more than once in the filter."
            )
        components.append(_component(each))
        types.add(each.entity_type)
    if IP in types and len(types) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "An address cannot be combined with a user or client id."
        )
    return components


def _component(asked: ComponentData) -> Component:
    if not asked.entity_type:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if asked.entity_type not in (USER, CLIENT_ID, IP):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {asked.entity_type}"
        )
    if asked.match_type not in (_EXACT, _DEFAULT, _ANY):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {asked.match_type}")
    if (asked.match_type == _EXACT) != (asked.match is not None):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A name belongs to an exact match, and to no other."
        )
    return Component(asked.entity_type, asked.match, asked.match_type == _ANY)
