"""`magnetar quotas`: list, set and remove what clients may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    Commands,
    Connect,
    asks_brokers,
    json_output,
    parse_settings,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from magnetar.client.quotas import Entity

#: The options by the type that the protocol has for them.
_KINDS = {"user": "user", "client_id": "client-id", "ip": "ip"}
_DEFAULT = "<default>"


@click.group(cls=Commands)
def quotas() -> None:
    """Look at quotas of clients, set and remove them."""


def _whose(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name whose quotas are meant."""
    for option, metavar, whose in (
        ("ip", "ADDRESS", "an address"),
        ("client-id", "NAME", "a client id"),
        ("user", "NAME", "a user"),
    ):
        name = option.replace("-", "_")
        command = click.option(
            f"--default-{option}",
            f"default_{name}",
            is_flag=True,
            help=f"The default of {whose} without a quota.",
        )(command)
        command = click.option(f"--{option}", name, metavar=metavar, help=f"The quota of {whose}.")(
            command
        )
    return command


@quotas.command("list")
@_whose
@json_output
@asks_brokers
def list_command(connect: Connect, as_json: bool, **whose: Any) -> None:
    """List quotas; without options, all of them.

    --user also lists the user's quotas for single client ids.
    """
    from magnetar.client.quotas import describe_quotas

    entity = _entity(whose)
    with connect() as client:
        found = describe_quotas(client, entity)
    if as_json:
        return print_json(each.to_json() for each in found)
    rows = [
        (_named(each.entity), name, f"{rate:.12g}")
        for each in found
        for name, rate in sorted(each.rates.items())
    ]
    print_table(("of", "quota", "rate"), rows, "no quotas")


@quotas.command("set", short_help="Set quotas by their names.")
@click.argument("rates", metavar="NAME=RATE...", nargs=-1, required=True)
@_whose
@click.option("--dry-run", is_flag=True, help="Let the broker check everything, change nothing.")
@json_output
@asks_brokers
def set_command(
    connect: Connect, rates: tuple[str, ...], dry_run: bool, as_json: bool, **whose: Any
) -> None:
    """Set quotas: producer_byte_rate, consumer_byte_rate, request_percentage,
    controller_mutation_rate, or connection_creation_rate of an address.

    \b
    magnetar quotas set --user ada producer_byte_rate=1048576
    magnetar quotas set --default-user --client-id etl request_percentage=25
    """
    entity = _named_entity(whose)
    given = parse_settings(rates, "NAME=RATE")
    wanted = {name: _rate(name, text) for name, text in given.items()}
    from magnetar.client.quotas import alter_quotas

    with connect() as client:
        alter_quotas(client, entity, wanted, validate_only=dry_run)
    if as_json:
        return print_json([{**_entity_json(entity), "set": wanted, "dry_run": dry_run}])
    done = ", ".join(f"{name}={rate:.12g}" for name, rate in wanted.items())
    print(f"{_named(entity)}: {done}{' would be accepted' if dry_run else ''}")


@quotas.command("unset")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_whose
@json_output
@asks_brokers
def unset_command(connect: Connect, names: tuple[str, ...], as_json: bool, **whose: Any) -> None:
    """Remove quotas. A more general quota may apply then."""
    entity = _named_entity(whose)
    from magnetar.client.quotas import alter_quotas

    with connect() as client:
        alter_quotas(client, entity, {}, names)
    if as_json:
        return print_json([{**_entity_json(entity), "unset": list(names)}])
    print(f"{_named(entity)}: {', '.join(names)} unset")


def _entity(whose: Mapping[str, Any]) -> Entity:
    entity: dict[str, str | None] = {}
    for option, kind in _KINDS.items():
        name, is_default = whose[option], whose[f"default_{option}"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other.")
        if name is not None or is_default:
            entity[kind] = name
    return entity


def _named_entity(whose: Mapping[str, Any]) -> Entity:
    entity = _entity(whose)
    if not entity:
        raise click.UsageError(
            "Name --user, --client-id or --ip, or the default of one: --default-user."
        )
    return entity


def _rate(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{name}={text} is no number.", param_hint="NAME=RATE") from None


def _named(entity: Entity) -> str:
    return ", ".join(
        f"{kind} {_DEFAULT if name is None else name}" for kind, name in entity.items()
    )


def _entity_json(entity: Entity) -> dict[str, Any]:
    return {"entity": [{"type": kind, "name": name} for kind, name in entity.items()]}
