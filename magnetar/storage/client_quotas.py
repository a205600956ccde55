"""Client quotas: stored in the catalog, described, and found for a client.

Owns Kafka's rules for entities and for the values of quotas (KIP-13, KIP-124, KIP-546, KIP-599,
KIP-612). An entity is a user, a client id, both of them, or an address; a part without a name
stands for all users, client ids or addresses that have no quota of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from magnetar.storage.catalog import Catalog
from magnetar.storage.differences import difference
from magnetar.storage.kept_names import check_length
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import INT64_MAX

USER, CLIENT_ID, IP = "user", "client-id", "ip"
#: (type, name) in the order of types; the name None stands for the default entity.
Entity = tuple[tuple[str, str | None], ...]
#: An entity and its quotas by key.
Quotas = tuple[Entity, dict[str, float]]

#: The quotas of users and client ids; whether the value must be a whole number.
_OF_CLIENTS = {
    "consumer_byte_rate": True,
    "controller_mutation_rate": False,
    "producer_byte_rate": True,
    "request_percentage": False,
}
_OF_ADDRESSES = {"connection_creation_rate": True}
#: Most entities with quotas: all of them are held in memory.
ENTITIES_MAX = 10_000


class Change(NamedTuple):
    """One changed value of an entity; None removes it."""

    key: str
    value: float | None


class Component(NamedTuple):
    """A part that an entity must have: with this `name`, or with any where it `is_any`."""

    entity_type: str
    name: str | None
    is_any: bool


class ClientQuotas:
    """The quotas of every entity that has some."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._quotas: dict[Entity, dict[str, float]] = {
            _read(text): values for text, values in catalog.client_quotas().items()
        }
        #: Called after each change.
        self.on_change: Callable[[], None] = lambda: None

    def reload(self, *texts: str) -> None:
        """Read entities again, which the catalog keeps as `texts`, or all of them: another node may
        have changed them."""
        stored = self._catalog.client_quotas(*texts)
        quotas = {_read(each): values for each, values in stored.items()}
        if texts:
            for each in texts:
                self._quotas.pop(_read(each), None)
            self._quotas.update(quotas)
        else:
            self._quotas = quotas
        self.on_change()

    def check(
        self,
        entity: Entity,
        changes: Iterable[Change],
        beside: Mapping[Entity, Mapping[str, float]] | None = None,
    ) -> dict[str, float]:
        """Return the entity's quotas after `changes`. Raises INVALID_REQUEST, POLICY_VIOLATION.

        `beside`: what others become at the same time.
        """
        allowed = _allowed(entity)
        quotas = dict(self._quotas.get(entity, {}))
        for key, value in changes:
            if value is None:
                quotas.pop(key, None)
            else:
                _check_value(allowed, key, value)
                quotas[key] = value
        if quotas and entity not in self._quotas:
            for _, name in entity:
                check_length(name or "")
            self._check_room(beside or {})
        return quotas

    def _check_room(self, beside: Mapping[Entity, Mapping[str, float]]) -> None:
        """Raise POLICY_VIOLATION unless one more entity can have quotas, `beside` these."""
        if len(self._quotas) + len(beside) < ENTITIES_MAX:
            return
        new = sum(bool(quotas) and each not in self._quotas for each, quotas in beside.items())
        if len(self._quotas) + new >= ENTITIES_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{ENTITIES_MAX} entities have quotas, no more can."
            )

    def replace(self, quotas: Mapping[Entity, Mapping[str, float]]) -> None:
        """Store what `check` returned for these entities, durably, for all of them or none."""
        # The catalog first: memory never says what the disk might not have.
        self._catalog.set_client_quotas(
            {_write(each): difference(self.of(each), quotas[each]) for each in quotas}
        )
        for entity, values in quotas.items():
            if values:
                self._quotas[entity] = dict(values)
            else:
                self._quotas.pop(entity, None)
        self.on_change()

    def of(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas of exactly this entity."""
        return self._quotas.get(entity, {})

    @property
    def types(self) -> set[str]:
        """The types of all entities that have quotas."""
        return {entity_type for entity in self._quotas for entity_type, _ in entity}

    def find(self, components: Iterable[Component], *, strict: bool) -> list[Quotas]:
        """Return the entities that have every component, with `strict` and no others."""
        found = having(self.all(), list(components), strict=strict)
        return sorted(found, key=order)

    def all(self) -> list[Quotas]:
        """Return all entities with their quotas, in no order. No later change is seen in it."""
        return [*self._quotas.items()]


def make_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity of these parts; the last one counts where a type is named twice."""
    # Sorted, so that the order in which a request names the parts makes no second entity.
    return tuple(sorted(dict(parts).items()))


def _allowed(entity: Entity) -> dict[str, bool]:
    """Return the keys that this entity may have, and whether their values are whole numbers."""
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    types = {entity_type for entity_type, _ in entity}
    for entity_type, name in entity:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {entity_type}"
            )
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {entity_type} not supported")
    if IP not in types:
        return _OF_CLIENTS
    if len(types) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "An address cannot be combined with a user or client id."
        )
    _check_address(dict(entity)[IP])
    return _OF_ADDRESSES


def _check_address(address: str | None) -> None:
    """Raise INVALID_REQUEST unless it is an address, or None."""
    # Kafka takes names of hosts too, and looks them up: a request must not wait for that.
    if address is None:
        return
    try:
        ip_address(address)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{address} is not an IP address.") from None


def _check_value(allowed: Mapping[str, bool], key: str, value: float) -> None:
    is_whole = allowed.get(key)
    if is_whole is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be a finite number")
    if value <= 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    # The largest int64 is no double: clients that mean it send the next one, 2^63.
    if is_whole and value > float(INT64_MAX):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} is too large.")
    # Kafka's bound: what a client has computed misses a whole number by a little.
    if is_whole and value % 1 > 1e-6:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


def having(some: Iterable[Quotas], wanted: Sequence[Component], *, strict: bool) -> list[Quotas]:
    """Return those of `some` that have every component, with `strict` and no others."""
    return [each for each in some if _matches(dict(each[0]), wanted, strict)]


def _matches(entity: Mapping[str, str | None], wanted: Sequence[Component], strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    return all(
        each.entity_type in entity and (each.is_any or entity[each.entity_type] == each.name)
        for each in wanted
    )


def order(item: Quotas) -> list[tuple[str, str]]:
    """Return what entities are sorted by."""
    return [(entity_type, name or "") for entity_type, name in item[0]]


def _write(entity: Entity) -> str:
    return json.dumps(entity, ensure_ascii=False)


def _read(text: str) -> Entity:
    return make_entity((entity_type, name) for entity_type, name in json.loads(text))
