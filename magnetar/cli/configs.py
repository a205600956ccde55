"""`magnetar configs`: list, get, set, unset; of topics, brokers and groups."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import Commands
from magnetar.cli.options import (
    EXIT_FAILURE,
    bootstrap,
    json_output,
    parse_settings,
    print_json,
    reports_errors,
    timeout,
)
from magnetar.cli.readable import ABSENT, table

if TYPE_CHECKING:
    from magnetar.client.configs import Entry, Resource

Command = Callable[..., None]


def _of_one_resource(*, is_required: bool) -> Callable[[Command], Command]:
    """Add the options that name what the settings belong to; the command gets it as `resource`.

    None where they name nothing, if it is not required. UsageError where they name two things.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(
            *,
            topic: str | None,
            broker: str | None,
            all_brokers: bool,
            group: str | None,
            **rest: Any,
        ) -> None:
            resource = _resource(topic, broker, all_brokers, group)
            if resource is None and is_required:
                raise click.UsageError("Say whose: --topic, --broker, --all-brokers or --group.")
            command(resource=resource, **rest)

        for option in (
            click.option("--group", "-g", metavar="GROUP", help="Settings of a consumer group."),
            click.option("--all-brokers", is_flag=True, help="What holds for every broker."),
            click.option(
                "--broker", metavar="NODE_ID", help="Settings of a broker, by its number."
            ),
            click.option("--topic", "-t", metavar="TOPIC", help="Settings of a topic."),
        ):
            run = option(run)
        return run

    return decorate


def _resource(
    topic: str | None, broker: str | None, all_brokers: bool, group: str | None
) -> Resource | None:
    """Return what the options name; UsageError where they name more than one thing."""
    from magnetar.client.configs import Resource
    from magnetar.config.resources import ResourceType

    named = [
        Resource(kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.BROKER, broker),
            (ResourceType.BROKER, "" if all_brokers else None),
            (ResourceType.GROUP, group),
        )
        if name is not None
    ]
    if len(named) > 1:
        raise click.UsageError("--topic, --broker, --all-brokers and --group exclude each other.")
    return named[0] if named else None


@click.group(cls=Commands)
def configs() -> None:
    """Look at settings, and change them while brokers run."""


@configs.command("list")
@_of_one_resource(is_required=False)
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@click.option("--doc", is_flag=True, help="What each means.")
@json_output
@bootstrap
@timeout
@reports_errors
def list_command(
    resource: Resource | None,
    changed: bool,
    doc: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """List settings with their values and where these come from.

    Without a topic, broker or group: list what has settings.
    """
    from magnetar.client.cluster import Client
    from magnetar.client.configs import describe_configs, list_resources

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        if resource is None:
            resources = list_resources(client)
        else:
            ((_, entries),) = describe_configs(client, [resource])
    if resource is None:
        if as_json:
            print_json({"type": each.type.name.lower(), "name": each.name} for each in resources)
        elif resources:
            rows = [(each.type.name.lower().replace("_", " "), each.name) for each in resources]
            print(table(("type", "name"), rows))
        else:
            print("nothing has settings", file=sys.stderr)
        return
    shown = [entry for entry in entries if not (changed and entry.is_default)]
    if as_json:
        print_json(entry.to_json(resource) for entry in shown)
    elif not shown:
        print(f"{resource}: everything is the default", file=sys.stderr)
    else:
        header = ("name", "value", "source", "meaning") if doc else ("name", "value", "source")
        print(table(header, [_row(entry)[: len(header)] for entry in shown]))


@configs.command("get", short_help="Print the values of settings, for scripts.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@json_output
@bootstrap
@timeout
@reports_errors
def get_command(
    names: tuple[str, ...],
    resource: Resource,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Print the value of settings, one per line, as a script wants it.

    Exit code 1 where there is no setting of that name.
    """
    from magnetar.client.cluster import Client
    from magnetar.client.configs import describe_configs

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        ((_, entries),) = describe_configs(client, [resource], names)
    by_name = {entry.name: entry for entry in entries}
    for name in names:
        if name not in by_name:
            print(
                f"magnetar: error: {resource} has no setting {name}."
                " `magnetar configs list` shows which there are.",
                file=sys.stderr,
            )
            raise SystemExit(EXIT_FAILURE)
    if as_json:
        print_json(by_name[name].to_json(resource) for name in names)
        return
    for name in names:
        print(by_name[name].value or "")


@configs.command("set")
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@click.option("--dry-run", is_flag=True, help="Have the broker check it, change nothing.")
@json_output
@bootstrap
@timeout
@reports_errors
def set_command(
    settings: tuple[str, ...],
    resource: Resource,
    dry_run: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Set settings, all of them or none.

    \b
    magnetar configs set --topic orders retention.ms=86400000
    """
    wanted = parse_settings(settings, "NAME=VALUE")
    from magnetar.client.cluster import Client
    from magnetar.client.configs import change_configs

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        change_configs(client, resource, wanted, validate_only=dry_run)
    if as_json:
        print(json.dumps({"resource": str(resource), "set": {} if dry_run else wanted}))
        return
    done = ", ".join(f"{name}={value}" for name, value in wanted.items())
    print(f"{resource}: {done}{' could be set' if dry_run else ''}")


@configs.command("unset", short_help="Remove settings of its own.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@json_output
@bootstrap
@timeout
@reports_errors
def unset_command(
    names: tuple[str, ...],
    resource: Resource,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Remove settings of its own, so that what is above it holds again."""
    from magnetar.client.cluster import Client
    from magnetar.client.configs import change_configs

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        change_configs(client, resource, {}, names)
    if as_json:
        print(json.dumps({"resource": str(resource), "unset": list(names)}))
        return
    print(f"{resource}: {', '.join(names)} unset")


def _row(entry: Entry) -> tuple[str, ...]:
    value = "(secret)" if entry.is_sensitive else entry.value
    shown = ABSENT if value is None else value
    return entry.name, shown, entry.source, entry.documentation or ""
