"""Who may do what: rules, users, quotas. Each part stands for itself: a visitor may see some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar.client import Client, ClientError, Unreachable
from magnetar.client.acls import AclFilter, Operation, Pattern, Permission, Resource, describe_acls
from magnetar.client.quotas import Entity, describe_quotas
from magnetar.client.users import list_users
from magnetar.console.screens import Screen, Visit

ROWS_MAX = 300
_EVERY = AclFilter(Resource.ANY, None, Pattern.ANY, None, None, Operation.ANY, Permission.ANY)
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Rows, or why there are none."""

    rows: Sequence[Any] = ()
    total: int = 0
    refusal: str = ""


def overview(visit: Visit) -> Screen:
    """Rules, users and quotas."""
    wanted = visit.query.get("filter", "").strip()

    def ask(client: Client) -> dict[str, Part]:
        return {
            "acls": _part(visit, lambda: describe_acls(client, _EVERY), str, wanted),
            "users": _part(visit, lambda: list_users(client), lambda each: each.name, wanted),
            "quotas": _part(
                visit,
                lambda: describe_quotas(client, {}),
                lambda each: entity_text(each.entity),
                wanted,
            ),
        }

    parts = visit.look(ask)
    values = {
        **parts,
        "filter": wanted,
        "entity_text": entity_text,
        "entity_fields": entity_fields,
        "total": max(part.total for part in parts.values()),
    }
    return Screen("access.html", values, "Access")


def entity_text(entity: Entity) -> str:
    """Return whose quota it is, in words."""
    return ", ".join(
        f"every other {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items()
    )


def entity_fields(entity: Entity) -> dict[str, str]:
    """Return an entity as the fields of the form of its quotas."""
    return {kind: "*" if name is None else name for kind, name in entity.items()}


def _part(
    visit: Visit, ask: Callable[[], Sequence[T]], text_of: Callable[[T], str], wanted: str
) -> Part:
    try:
        found = [each for each in ask() if wanted in text_of(each)]
    except Unreachable:
        raise
    # Not allowed, or the cluster has no authorizer: the other parts are shown.
    except ClientError as refusal:
        return Part(refusal=visit.explained(refusal))
    return Part(found[:ROWS_MAX], len(found))
