"""A setting of a topic, a node, all nodes or a group: set, or back to what holds without it."""

from __future__ import annotations

from magnetar.client import Client, ClientError
from magnetar.client.configs import Entry, Resource, change_configs, describe_configs
from magnetar.console.changes import Change, Field, Form, Given, Plan, Question, required
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
    ]
    is_secret = entry is not None and entry.is_sensitive
    if not is_secret:
        fields.append(Field("value", "Value", "text", value))
    about = "" if entry is None else entry.documentation or ""
    if is_secret:
        about += " Its value is secret: the next page asks for it."
    return Form(f"Change a setting of {resource}", _address(resource), str(resource), fields, about)


def _plan(client: Client, given: Given) -> Plan:
    resource = _resource(given)
    setting = required(given, "setting", "The setting's name")
    entry = _entry(client, resource, setting)
    if given.get("to") == "reset":
        return _reset(client, resource, setting, entry)
    if entry is not None and entry.is_sensitive:
        return _secret(resource, setting, entry)
    value = given.get("value", "")
    if entry is not None and entry.is_own and value == entry.value:
        raise ClientError(f"{setting} of {resource} is {value!r} already.")
    # The broker checks the name, the value and the rights, and changes nothing.
    change_configs(client, resource, {setting: value}, validate_only=True)
    return Plan(
        title=f"Change {setting}?",
        button="Change it",
        deed=lambda asked, _: change_configs(asked, resource, {setting: value}),
        done=f"{setting} of {resource} is changed.",
        back=_address(resource),
        effects=_effects(resource),
        heads=_HEADS,
        rows=[(str(resource), setting, _value(entry), value or "empty")],
        facts=(str(resource), _value(entry), value),
    )


def _secret(resource: Resource, setting: str, entry: Entry) -> Plan:
    """Return the plan of a value that stays out of addresses and pages."""
    return Plan(
        title=f"Change {setting}?",
        button="Change it",
        deed=lambda asked, value: change_configs(asked, resource, {setting: value}),
        done=f"{setting} of {resource} is changed.",
        back=_address(resource),
        effects=_effects(resource),
        heads=_HEADS,
        rows=[(str(resource), setting, _value(entry), "what you type")],
        question=Question(f"Value of {setting}", "password"),
        facts=(str(resource), _value(entry)),
    )


def _reset(client: Client, resource: Resource, setting: str, entry: Entry | None) -> Plan:
    if entry is None or not entry.is_own:
        raise ClientError(f"{resource} has no value of its own for {setting}.")
    change_configs(client, resource, {}, [setting], validate_only=True)
    return Plan(
        title=f"Reset {setting}?",
        button="Reset it",
        deed=lambda asked, _: change_configs(asked, resource, {}, [setting]),
        done=f"{setting} of {resource} is reset.",
        back=_address(resource),
        effects=_effects(resource),
        heads=_HEADS,
        rows=[(str(resource), setting, _value(entry), "what the level above says, or the default")],
        facts=(str(resource), _value(entry)),
    )


_HEADS = ("Of", "Setting", "Now", "Will be")


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
