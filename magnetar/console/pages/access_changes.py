"""Rules (ACLs), SCRAM users and quotas: added, changed, removed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from magnetar.client import Client, ClientError, NotFound
from magnetar.client.acls import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    create_acls,
    delete_acls,
    describe_acls,
)
from magnetar.client.quotas import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    alter_quotas,
    describe_quotas,
)
from magnetar.client.users import list_users, remove_user, set_password
from magnetar.console.changes import (
    Change,
    Field,
    Form,
    Given,
    Plan,
    Question,
    listed,
    required,
    whole,
)
from magnetar.console.pages.access import entity_text

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: The bounds that Kafka's brokers have; the smallest is Kafka's default too.
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16384
_RATES = (
    ("producer_byte_rate", "bytes a second that it writes"),
    ("consumer_byte_rate", "bytes a second that it reads"),
    ("request_percentage", "percent of the time of a node's threads"),
    ("controller_mutation_rate", "partitions a second that it makes or deletes"),
    ("connection_creation_rate", "connections a second that an address opens"),
)
_CLUSTER_NAME = "kafka-cluster"
#: Stands for all without a quota of their own.
_DEFAULT = "*"
_BACK = "/access"
E = TypeVar("E", bound=IntEnum)


# --- rules


def _words(kind: type[E], left_out: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (each.name, each.name.lower().replace("_", " "))
        for each in kind
        if each.name not in left_out
    ]


def _rule_form(client: Client, given: Given) -> Form:
    return Form(
        "New rule",
        _BACK,
        "Access",
        [
            Field("principal", "Who", hint="User:ada, or User:* for all", is_required=True),
            Field("permission", "May or may not", "choice", "ALLOW", choices=_PERMISSIONS),
            Field("operation", "Do", "choice", "READ", choices=_words(Operation, ["ANY"])),
            Field("resource", "With", "choice", "TOPIC", choices=_words(Resource, ["ANY"])),
            Field("name", "Name", hint="* is all of them; not needed for the cluster."),
            Field("pattern", "The name is", "choice", "LITERAL", choices=_PATTERNS),
            Field("host", "From host", value="*", hint="An IP address, or * for any."),
        ],
    )


_PERMISSIONS = [("ALLOW", "may"), ("DENY", "may not, whatever else allows it")]
_PATTERNS = [("LITERAL", "the whole name"), ("PREFIXED", "how names begin")]


def _rule(given: Given) -> Acl:
    resource = _word(Resource, given, "resource")
    is_cluster = resource is Resource.CLUSTER
    name = _CLUSTER_NAME if is_cluster else required(given, "name", "The name")
    principal = required(given, "principal", "Who the rule is about")
    if ":" not in principal:
        raise ClientError(f"{principal!r} has no type: write User:{principal}.")
    return Acl(
        resource,
        name,
        _word(Pattern, given, "pattern"),
        principal,
        given.get("host") or "*",
        _word(Operation, given, "operation"),
        _word(Permission, given, "permission"),
    )


def _add_rule(client: Client, given: Given) -> Plan:
    rule = _rule(given)
    if rule in describe_acls(client, _filter(rule)):
        raise ClientError("That rule is there already.")
    effects = ["It holds at once, for open connections too."]
    if rule.permission is Permission.DENY:
        effects.append("It goes before every rule that allows: also for the one who adds it.")
    elif not describe_acls(client, _about(rule)):
        effects.append(
            "It is the first rule about this name. Where allow.everyone.if.no.acl.found is set,"
            " everybody may use it now, and from then on only those whom a rule names."
        )
    return Plan(
        title="Add this rule?",
        button="Add the rule",
        deed=lambda asked, _: create_acls(asked, [rule]),
        done="The rule is there.",
        back=_BACK,
        effects=effects,
        heads=_RULE_HEADS,
        rows=[_rule_row(rule)],
    )


def _delete_rule(client: Client, given: Given) -> Plan:
    rule = _rule(given)
    if rule not in describe_acls(client, _filter(rule)):
        raise NotFound("There is no such rule (any more).")
    effects = ["It holds no more, at once."]
    if rule.permission is Permission.DENY:
        effects.append("What it denied may be allowed by other rules.")
    return Plan(
        title="Delete this rule?",
        button="Delete the rule",
        deed=lambda asked, _: delete_acls(asked, [_filter(rule)]),
        done="The rule is deleted.",
        back=_BACK,
        effects=effects,
        heads=_RULE_HEADS,
        rows=[_rule_row(rule)],
    )


_RULE_HEADS = ("Who", "", "Do", "With", "From host")


def _rule_row(rule: Acl) -> tuple[str, ...]:
    name = f"{rule.name}…" if rule.pattern is Pattern.PREFIXED else rule.name
    resource = rule.resource.name.lower().replace("_", " ")
    may = "may" if rule.permission is Permission.ALLOW else "may not"
    operation = rule.operation.name.lower().replace("_", " ")
    return rule.principal, may, operation, f"{resource} {name}", rule.host


def _filter(rule: Acl) -> AclFilter:
    return AclFilter(*rule)


def _about(rule: Acl) -> AclFilter:
    return AclFilter(
        rule.resource, rule.name, Pattern.MATCH, None, None, Operation.ANY, Permission.ANY
    )


def _word(kind: type[E], given: Given, name: str) -> E:
    try:
        return kind[given.get(name, "")]
    except KeyError:
        raise ClientError(f"There is no {name} {given.get(name, '')!r}.") from None


# --- users


def _password_form(client: Client, given: Given) -> Form:
    return Form(
        "User of SCRAM",
        _BACK,
        "Access",
        [
            Field("name", "User", value=given.get("name", ""), is_required=True),
            Field(
                "mechanism",
                "Logs in by",
                "choice",
                choices=[("", "both"), *((each, each) for each in _MECHANISMS)],
            ),
            Field(
                "iterations",
                "Iterations",
                "number",
                str(_ITERATIONS_MIN),
                f"{_ITERATIONS_MIN} to {_ITERATIONS_MAX}: how dear each guess of the password is,"
                " and each login.",
            ),
        ],
        "The next page asks for the password.",
    )


def _set_password(client: Client, given: Given) -> Plan:
    name = required(given, "name", "The user's name")
    text = given.get("iterations") or str(_ITERATIONS_MIN)
    iterations = whole(text, "Iterations", _ITERATIONS_MIN, _ITERATIONS_MAX)
    wanted = given.get("mechanism", "")
    if wanted and wanted not in _MECHANISMS:
        raise ClientError(f"There is no mechanism {wanted!r}.")
    mechanisms = [wanted] if wanted else list(_MECHANISMS)
    known = next((each.iterations for each in list_users(client) if each.name == name), {})
    changed = [each for each in mechanisms if each in known]
    effects = [f"{name} can log in by {listed(mechanisms)}, with the password that you type."]
    if changed:
        effects.append(f"The password that {name} has for {listed(changed)} ends.")
    effects.append("Connections that are open stay open. What the user may do, rules say.")

    def change(asked: Client, password: str) -> None:
        # One at a time: a user that a request names twice is refused.
        for mechanism in mechanisms:
            set_password(asked, name, mechanism, password, iterations)

    return Plan(
        title=f"Change the password of {name}?" if known else f"Add user {name}?",
        button="Change the password" if known else "Add the user",
        deed=change,
        done=f"{name} can log in by {listed(mechanisms)}.",
        back=_BACK,
        effects=effects,
        question=Question("Password", "password"),
        facts=[sorted(known), mechanisms, iterations],
    )


def _delete_user(client: Client, given: Given) -> Plan:
    name = required(given, "name", "The user's name")
    known = next((each for each in list_users(client) if each.name == name), None)
    if known is None:
        raise NotFound(f"There is no user {name!r} (any more).")
    return Plan(
        title=f"Delete user {name}?",
        button="Delete the user",
        deed=lambda asked, _: remove_user(asked, name),
        done=f"User {name} is deleted.",
        back=_BACK,
        effects=[
            f"{name} can log in no more by {listed(known.iterations)}.",
            "Connections that are open stay open. Rules and quotas of the user stay.",
        ],
        is_final=True,
        facts=sorted(known.iterations),
    )


# --- quotas


def _quota_form(client: Client, given: Given) -> Form:
    hint = "* is the default of all without one of their own."
    return Form(
        "Quota",
        _BACK,
        "Access",
        [
            Field("user", "User", value=given.get("user", ""), hint=hint),
            Field("client-id", "Client id", value=given.get("client-id", ""), hint=hint),
            Field("ip", "Address", value=given.get("ip", ""), hint=f"Alone. {hint}"),
            Field("rate", "Limit", "choice", choices=[(a, f"{a}: {b}") for a, b in _RATES]),
            Field("value", "At most", value=given.get("value", ""), is_required=True),
        ],
    )


def _set_quota(client: Client, given: Given) -> Plan:
    entity = _entity(given)
    rate = _rate(given)
    text = required(given, "value", "The limit")
    try:
        value = float(text.replace(" ", ""))
    except ValueError:
        raise ClientError(f"{text!r} is no number.") from None
    # The broker checks the name, the value and the rights, and changes nothing.
    alter_quotas(client, entity, {rate: value}, validate_only=True)
    before = _quota_now(client, entity).get(rate)
    return Plan(
        title=f"Set {rate}?",
        button="Set the quota",
        deed=lambda asked, _: alter_quotas(asked, entity, {rate: value}),
        done=f"The quota of {entity_text(entity)} is set.",
        back=_BACK,
        effects=["It holds at once. Who takes more is made to wait, and loses nothing."],
        heads=_QUOTA_HEADS,
        rows=[_quota_row(entity, rate, before, f"{value:.12g}")],
        facts=(before, value),
    )


def _remove_quota(client: Client, given: Given) -> Plan:
    entity = _entity(given)
    rate = _rate(given)
    before = _quota_now(client, entity).get(rate)
    if before is None:
        raise NotFound(f"{entity_text(entity)} has no {rate} (any more).")
    return Plan(
        title=f"Remove {rate}?",
        button="Remove the quota",
        deed=lambda asked, _: alter_quotas(asked, entity, {}, [rate]),
        done=f"{entity_text(entity)} has no {rate} any more.",
        back=_BACK,
        effects=["A more general quota holds then, or none."],
        heads=_QUOTA_HEADS,
        rows=[_quota_row(entity, rate, before, "none of its own")],
        facts=(before,),
    )


_QUOTA_HEADS = ("Whose", "Limit", "Now", "Will be")


def _quota_row(entity: Entity, rate: str, before: float | None, after: str) -> tuple[str, ...]:
    return entity_text(entity), rate, "none" if before is None else f"{before:.12g}", after


def _quota_now(client: Client, entity: Entity) -> Mapping[str, float]:
    found = describe_quotas(client, entity)
    return next((each.rates for each in found if each.entity == entity), {})


def _rate(given: Given) -> str:
    rate = given.get("rate", "")
    if rate not in dict(_RATES):
        raise ClientError(f"There is no limit {rate!r}.")
    return rate


def _entity(given: Given) -> Entity:
    named = {kind: given[kind] for kind in (USER, CLIENT_ID, IP) if given.get(kind)}
    if not named:
        raise ClientError("Name a user, a client id or an address.")
    if IP in named and len(named) > 1:
        raise ClientError("A quota of an address is of the address alone.")
    if IP in named and named[IP] != _DEFAULT:
        try:
            ipaddress.ip_address(named[IP])
        except ValueError:
            raise ClientError(f"{named[IP]!r} is no IP address.") from None
    return {kind: None if name == _DEFAULT else name for kind, name in named.items()}


ADD_RULE = Change(_add_rule, _rule_form)
DELETE_RULE = Change(_delete_rule)
SET_PASSWORD = Change(_set_password, _password_form)
DELETE_USER = Change(_delete_user)
SET_QUOTA = Change(_set_quota, _quota_form)
REMOVE_QUOTA = Change(_remove_quota)
