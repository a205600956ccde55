"""Quotas of users, client ids and addresses: list, set and remove them (KIP-13, KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client
from magnetar.client.errors import check
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

#: What a quota may belong to. The name None stands for the default of those that have none.
USER, CLIENT_ID, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT = 0, 1
#: Name by type, such as {"user": "ada", "client-id": None}.
Entity = Mapping[str, str | None]


@dataclass(frozen=True)
class Quotas:
    """What one entity may take: the rates by their names."""

    entity: Entity
    rates: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": [{"type": kind, "name": name} for kind, name in self.entity.items()],
            "quotas": dict(sorted(self.rates.items())),
        }


def describe_quotas(client: Client, wanted: Entity) -> list[Quotas]:
    """Return the quotas of everything that has these names; of all, if `wanted` is empty."""
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(
                entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
            )
            for kind, name in wanted.items()
        ]
    )
    response = client.call(request, DescribeClientQuotasResponse)
    check(response.error_code, "listing quotas", response.error_message)
    found = [
        Quotas(
            {each.entity_type: each.entity_name for each in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda each: _rank(each.entity))


def _rank(entity: Entity) -> tuple[tuple[bool, str], ...]:
    """Sort a user before its client ids, and the default of a kind before the names."""
    return tuple((kind in entity, entity.get(kind) or "") for kind in (USER, CLIENT_ID, IP))


def alter_quotas(
    client: Client,
    entity: Entity,
    rates: Mapping[str, float],
    unset: Sequence[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set and remove quotas of one entity: all of them, or none and Refused."""
    changes = [OpData(key=name, value=value) for name, value in rates.items()]
    changes += [OpData(key=name, remove=True) for name in unset]
    names = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = AlterClientQuotasRequest(
        entries=[EntryData(entity=names, ops=changes)], validate_only=validate_only
    )
    for result in client.call(request, AlterClientQuotasResponse).entries:
        check(result.error_code, "quotas", result.error_message)
