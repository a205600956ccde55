"""AlterClientQuotas (API key 49): set and remove quotas of users, client ids, addresses (KIP-546).

Versions 0-1.  1: flexible.

Quotas act from the next request on. A request of more than 10,000 values is refused as a whole.
Each entity stands alone; one that is named twice is INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from magnetar.apis.authorization import Whole
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.client_quotas import Change, Entity, make_entity
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    ResponseEntityData,
    ResponseEntryData,
)

#: Entities in one commit: at some tens of microseconds each, they take a few milliseconds.
_PIECE = 64


def _refuse(
    request: AlterClientQuotasRequest, version: int, error: KafkaError
) -> AlterClientQuotasResponse:
    """Refuse each entry: an entity has parts, where other things have a name."""
    entries = [_result(_parts(entry)) for entry in request.entries]
    for entry in entries:
        entry.error_code = error.code
        entry.error_message = error.detail or None
    return AlterClientQuotasResponse(entries=entries)


def _parts(entry: EntryData) -> Iterable[tuple[str, str | None]]:
    return ((part.entity_type, part.entity_name) for part in entry.entity)


def _result(parts: Iterable[tuple[str, str | None]]) -> ResponseEntryData:
    entity = [ResponseEntityData(entity_type=kind, entity_name=name) for kind, name in parts]
    return ResponseEntryData(error_message=None, entity=entity)


@handles(
    AlterClientQuotasRequest,
    versions="0-1",
    refuse=_refuse,
    needs=[Whole([Operation.ALTER_CONFIGS], Resource.CLUSTER)],
    changes_catalog=True,
)
async def alter_client_quotas(
    services: Services, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    check_changes(len(request.entries))
    # Parts count too: an entity has two at most, and one may name a hundred thousand.
    check_changes(sum(max(len(entry.ops), len(entry.entity) - 1, 1) for entry in request.entries))
    both = [
        (make_entity(_parts(entry)), entry) async for entry in services.turns.each(request.entries)
    ]
    named = Counter(entity for entity, _ in both)
    # By entity: one that is named twice is answered once.
    answers: dict[Entity, ResponseEntryData] = {}
    # One commit for each piece: one for each entity would take long for many.
    async for piece in services.turns.pieces(both, _PIECE):
        replaced: dict[Entity, dict[str, float]] = {}
        for entity, entry in piece:
            answers[entity] = _result(entity)
            with refused_in(answers[entity]):
                # Which of the two changes would come last is not for the broker to guess.
                if named[entity] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "An entity is named twice.")
                replaced[entity] = services.client_quotas.check(entity, _changes(entry), replaced)
        if replaced and not request.validate_only:
            services.client_quotas.replace(replaced)
    return AlterClientQuotasResponse(entries=list(answers.values()))


def _changes(entry: EntryData) -> list[Change]:
    """Return the changes. Raises INVALID_REQUEST where one key is changed twice."""
    if len({op.key for op in entry.ops}) != len(entry.ops):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A quota of an entity is named twice.")
    return [Change(op.key, None if op.remove else op.value) for op in entry.ops]
