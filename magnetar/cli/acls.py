"""`magnetar acls`: list, add, remove access control lists, in the words of kafka-acls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    Command,
    Commands,
    Connect,
    asks_brokers,
    complete_groups,
    complete_topics,
    confirm,
    json_output,
    never_asks,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from magnetar.client.acls import Acl, AclFilter, Resource

#: Option -> the resource that it names.
_RESOURCES = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional_id": "TRANSACTIONAL_ID",
    "delegation_token": "DELEGATION_TOKEN",
    "user_principal": "USER",
}
_COMPLETED: dict[str, Any] = {"topic": complete_topics, "group": complete_groups}
_OPERATIONS = (
    *("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION"),
    *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS"),
    *("DESCRIBE_TOKENS", "TWO_PHASE_COMMIT"),
)
#: Kafka's tools write DescribeConfigs, its protocol DESCRIBE_CONFIGS.
_SPELLINGS = {name.replace("_", "").lower(): name for name in _OPERATIONS}

Named = list[tuple["Resource", str]]


class _Operation(click.ParamType[str]):
    """An operation in any of Kafka's spellings; the value is that of the protocol."""

    name = "operation"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        found = _SPELLINGS.get(str(value).replace("_", "").lower())
        if found is None:
            self.fail(f"{value!r} is not one of {', '.join(_OPERATIONS)}.", param, context)
        return found


def _of_resources(command: Command) -> Command:
    """Add the options that name resources, which the command gets as `named`."""

    @functools.wraps(command)
    def run(*, cluster: bool, **rest: Any) -> None:
        from magnetar.client.acls import Resource

        named: Named = [
            (Resource[kind], name)
            for option, kind in _RESOURCES.items()
            for name in rest.pop(option)
        ]
        if cluster:
            named.append((Resource.CLUSTER, "kafka-cluster"))
        command(named=named, **rest)

    run = click.option("--cluster", is_flag=True, help="The cluster itself.")(run)
    for option in reversed(_RESOURCES):
        run = click.option(
            f"--{option.replace('_', '-')}",
            option,
            metavar="NAME",
            multiple=True,
            shell_complete=_COMPLETED.get(option),
            help=f"A {option.replace('_', ' ')}; * is all of them. Repeatable.",
        )(run)
    return run


def _filtered(command: Command) -> Command:
    """Add the options that choose rules, which the command gets as `filters`."""

    @functools.wraps(command)
    def run(
        *,
        named: Named,
        principal: str | None,
        host: str | None,
        operation: str | None,
        permission: str | None,
        pattern: str,
        **rest: Any,
    ) -> None:
        from magnetar.client.acls import AclFilter, Operation, Pattern, Permission, Resource

        wanted: Iterable[tuple[Resource, str | None]] = named or [(Resource.ANY, None)]
        filters = [
            AclFilter(
                kind,
                name,
                Pattern[pattern.upper()],
                principal,
                host,
                Operation[operation or "ANY"],
                Permission[(permission or "any").upper()],
            )
            for kind, name in wanted
        ]
        command(filters=filters, **rest)

    decorated: Callable[..., None] = run
    for option in (
        click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(("any", "match", "literal", "prefixed"), case_sensitive=False),
            default="any",
            show_default=True,
            help="match: every rule that applies to the name, also by a prefix or *.",
        ),
        click.option(
            "--permission",
            type=click.Choice(("allow", "deny"), case_sensitive=False),
            help="Only rules that allow, or that deny.",
        ),
        click.option("--operation", type=_Operation(), help="Only for this operation."),
        click.option("--host", metavar="ADDRESS", help="Only for this host."),
        click.option("--principal", metavar="TYPE:NAME", help="Only for this principal: User:ada."),
    ):
        decorated = option(decorated)
    return _of_resources(decorated)


@click.group(cls=Commands)
def acls() -> None:
    """Look at access control lists, add and remove them."""


@acls.command("list")
@_filtered
@json_output
@asks_brokers
def list_command(connect: Connect, filters: list[AclFilter], as_json: bool) -> None:
    """List access control lists; without options, all of them."""
    from magnetar.client.acls import describe_acls

    with connect() as client:
        found = sorted({acl for each in filters for acl in describe_acls(client, each)})
    _print(found, as_json, "no ACLs")


@acls.command("add")
@click.option(
    "--allow-principal",
    "allowed",
    metavar="TYPE:NAME",
    multiple=True,
    help="Allow this principal: User:ada, or User:*. Repeatable.",
)
@click.option(
    "--deny-principal",
    "denied",
    metavar="TYPE:NAME",
    multiple=True,
    help="Deny this principal, even if another rule allows it. Repeatable.",
)
@click.option(
    "--host",
    "hosts",
    metavar="ADDRESS",
    multiple=True,
    default=("*",),
    show_default=True,
    help="Only from this IP address, or from a network: 10.0.0.0/8. Repeatable.",
)
@click.option(
    "--operation",
    "operations",
    type=_Operation(),
    multiple=True,
    required=True,
    help=f"What: {', '.join(_OPERATIONS)}. Repeatable.",
)
@_of_resources
@click.option(
    "--prefix", is_flag=True, help="The rule applies to every name that begins with the given one."
)
@json_output
@asks_brokers
def add_command(
    connect: Connect,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    named: Named,
    prefix: bool,
    as_json: bool,
) -> None:
    """Allow or deny operations. Rules that exist already stay.

    READ, WRITE, DELETE and ALTER allow DESCRIBE too.

    \b
    magnetar acls add --allow-principal User:ada --operation read --topic orders --group billing
    magnetar acls add --allow-principal User:etl --operation write --topic etl- --prefix
    """
    from magnetar.client.acls import Acl, Operation, Pattern, Permission, create_acls

    if not (allowed or denied):
        raise click.UsageError("Name --allow-principal or --deny-principal.")
    if not named:
        raise click.UsageError("Name --topic, --group, --cluster or another resource.")
    principals = [(each, Permission.ALLOW) for each in allowed]
    principals += [(each, Permission.DENY) for each in denied]
    wanted = [
        Acl(
            kind,
            name,
            Pattern.PREFIXED if prefix else Pattern.LITERAL,
            principal,
            host,
            Operation[operation],
            permission,
        )
        for kind, name in named
        for principal, permission in principals
        for host in hosts
        for operation in operations
    ]
    with connect() as client:
        create_acls(client, wanted)
    _print(wanted, as_json, "")


@acls.command("remove", short_help="Remove access control lists.")
@_filtered
@never_asks
@json_output
@asks_brokers
def remove_command(connect: Connect, filters: list[AclFilter], yes: bool, as_json: bool) -> None:
    """Remove the access control lists that `magnetar acls list` shows with the same options."""
    from magnetar.client.acls import delete_acls, describe_acls

    # A filter without a word chooses everything, which is rarely meant.
    if all(each.name is None and each.principal is None for each in filters):
        raise click.UsageError("Name a resource or --principal.")
    with connect() as client:
        found = sorted({acl for each in filters for acl in describe_acls(client, each)})
        if found:
            confirm("\n".join([*map(str, found), "Remove these?"]), yes=yes)
        removed = delete_acls(client, filters) if found else []
    _print(removed, as_json, "no ACLs")


def _print(found: Iterable[Acl], as_json: bool, nothing: str) -> None:
    if as_json:
        return print_json(
            {
                "resource": acl.resource.name,
                "name": acl.name,
                "pattern": acl.pattern.name,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation.name,
                "permission": acl.permission.name,
            }
            for acl in found
        )
    rows = [
        (
            acl.resource.name,
            acl.name,
            acl.pattern.name,
            acl.permission.name,
            acl.principal,
            acl.host,
            acl.operation.name,
        )
        for acl in found
    ]
    header = ("resource", "name", "pattern", "permission", "principal", "host", "operation")
    print_table(header, rows, nothing)
