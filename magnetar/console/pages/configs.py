"""Settings: what differs from the default first, and everything on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.client import Client, ClientError, NotFound
from magnetar.client.configs import Entry, Resource, describe_configs, list_resources
from magnetar.console.pages.topics import topic_of
from magnetar.console.screens import Screen, Visit
from wire.resource_type import ResourceType

_TYPES = {
    "broker": ResourceType.BROKER,
    "group": ResourceType.GROUP,
    "client_metrics": ResourceType.CLIENT_METRICS,
}
#: Named resources beside the brokers.
_OTHERS_MAX = 40


@dataclass(frozen=True)
class Settings:
    """The settings of one resource, filtered."""

    shown: Sequence[Entry]
    total: int
    changed: int


def overview(visit: Visit) -> Screen:
    """The settings of a broker, a group, or of client metrics."""

    def ask(client: Client) -> tuple[list[Resource], Resource, list[Entry]]:
        nodes = [Resource(ResourceType.BROKER, str(each)) for each in client.node_ids]
        nodes.append(Resource(ResourceType.BROKER, ""))
        wanted = _wanted(visit) or nodes[0]
        (found,) = describe_configs(client, [wanted])
        return nodes + _others(client), *found

    resources, chosen, entries = visit.look(ask)
    values = {
        "resources": resources,
        "chosen": chosen,
        "settings": settings_of(visit, entries),
        "filter": visit.query.get("filter", "").strip(),
        "all": visit.query.get("all") == "1",
    }
    return Screen("configs.html", values, f"Configs of {chosen}")


def of_topic(visit: Visit) -> Screen:
    """The settings of a topic."""
    name = topic_of(visit)
    resource = Resource(ResourceType.TOPIC, name)

    def ask(client: Client) -> list[Entry]:
        ((_, entries),) = describe_configs(client, [resource])
        return entries

    values = {
        "name": name,
        "tab": "configs",
        "chosen": resource,
        "settings": settings_of(visit, visit.look(ask)),
        "filter": visit.query.get("filter", "").strip(),
        "all": visit.query.get("all") == "1",
    }
    return Screen("topic_configs.html", values, f"{name}: configs")


def settings_of(visit: Visit, entries: Sequence[Entry]) -> Settings:
    """Return the settings that the address asks for: those that differ, or all."""
    wanted = visit.query.get("filter", "").strip().lower()
    shows_all = visit.query.get("all") == "1" or bool(wanted)
    changed = [each for each in entries if not each.is_default]
    shown = [each for each in (entries if shows_all else changed) if wanted in each.name.lower()]
    return Settings(shown, len(entries), len(changed))


def _wanted(visit: Visit) -> Resource | None:
    kind, name = visit.query.get("type", ""), visit.query.get("name", "")
    if not kind:
        return None
    if kind not in _TYPES:
        raise NotFound(f"There is no kind of settings {kind!r}.")
    return Resource(_TYPES[kind], name)


def _others(client: Client) -> list[Resource]:
    """Return groups and client metrics that have settings; none where that cannot be asked."""
    try:
        found = list_resources(client)
    # An older broker cannot list them, and a user may not be allowed to: the brokers' are shown.
    except ClientError:
        return []
    kinds = (ResourceType.GROUP, ResourceType.CLIENT_METRICS)
    return [each for each in found if each.type in kinds][:_OTHERS_MAX]
