"""A setting of a topic, a node, all nodes or a group: set, or back to what holds without it."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.client import Client, ClientError
from magnetar.client.configs import Entry, Resource, change_configs, describe_configs
from magnetar.console.changes import Change, Field, Form, Plan, required
from magnetar.console.templating import link
from wire.resource_type import ResourceType

_KINDS = {
    each.name.lower(): each
    for each in (
        ResourceType.TOPIC,
        ResourceType.BROKER,
        ResourceType.GROUP,
        ResourceType.CLIENT_METRICS,
    )
}
Given = Mapping[str, str]


def _form(client: Client, given: Given) -> Form:
    resource = _resource(given)
    entry = _entry(client, resource, given.get("setting", ""))
    choices = [("set", "the value below"), ("reset", "what holds without a value of its own")]
    value = "" if entry is None or entry.value is None else entry.value
    fields = [
        Field("type", "Kind", "fixed", resource.kind),
        Field("name", "Of", "fixed", resource.name),
        Field("setting", "Setting", "fixed" if entry else "text", given.get("setting", "")),
        Field("to", "Change it to", "choice", "set", choices=choices),
        Field("value", "Value", "text", value),
    ]
    about = "" if entry is None else entry.documentation or ""
    return Form(f"Change a setting of {resource}", _address(resource), str(resource), fields, about)


def _plan(client: Client, given: Given) -> Plan:
    resource = _resource(given)
    setting = required(given, "setting", "The setting's name")
    entry = _entry(client, resource, setting)
    before = _value(entry)
    is_reset = given.get("to") == "reset"
    if is_reset and entry is not None and not entry.is_own:
        raise ClientError(f"{resource} has no value of its own for {setting}.")
    value = given.get("value", "")
    set_to = {} if is_reset else {setting: value}
    unset = [setting] if is_reset else []
    # The broker checks the name, the value and the rights, and changes nothing.
    change_configs(client, resource, set_to, unset, validate_only=True)
    after = "what holds without it: the level above, or the default" if is_reset else value
    if not is_reset and entry is not None and entry.is_own and value == entry.value:
        raise ClientError(f"{setting} of {resource} is {value!r} already.")
    return Plan(
        title=f"Reset {setting}?" if is_reset else f"Change {setting}?",
        button="Reset it" if is_reset else "Change it",
        deed=lambda asked, _: change_configs(asked, resource, set_to, unset),
        done=f"{setting} of {resource} is {'reset' if is_reset else 'changed'}.",
        back=_address(resource),
        effects=_effects(resource),
        heads=("Of", "Setting", "Now", "Will be"),
        rows=[(str(resource), setting, before, after or "empty")],
        facts=(str(resource), before, after),
    )


def _effects(resource: Resource) -> list[str]:
    if resource.type is ResourceType.BROKER and not resource.name:
        return ["It holds for every node that has no value of its own, at once."]
    if resource.type is ResourceType.BROKER:
        return ["It holds for this node alone, at once, and again after a restart."]
    if resource.type is ResourceType.TOPIC:
        return ["It holds for this topic at once: retention and compaction go by it soon."]
    return ["It holds at once."]


def _value(entry: Entry | None) -> str:
    if entry is None:
        return "not set"
    if entry.is_sensitive:
        return "secret"
    shown = "not set" if entry.value is None else entry.value or "empty"
    return f"{shown} ({entry.source})"


def _resource(given: Given) -> Resource:
    kind = _KINDS.get(given.get("type", ""))
    if kind is None:
        raise ClientError(f"There is no kind of settings {given.get('type', '')!r}.")
    # A broker without a name stands for all of them.
    if kind is ResourceType.BROKER:
        return Resource(kind, given.get("name", ""))
    return Resource(kind, required(given, "name", "The name"))


def _entry(client: Client, resource: Resource, setting: str) -> Entry | None:
    """Return the setting now; None: the resource has no value for it."""
    if not setting:
        return None
    ((_, entries),) = describe_configs(client, [resource], [setting])
    return next((each for each in entries if each.name == setting), None)


def _address(resource: Resource) -> str:
    if resource.type is ResourceType.TOPIC:
        return link("/topics/configs", name=resource.name)
    return link("/configs", type=resource.kind, name=resource.name)


CHANGE = Change(_plan, _form)
