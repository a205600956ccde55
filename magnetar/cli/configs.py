"""`magnetar configs`: list, get, set and unset settings of topics, brokers and groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    Command,
    Commands,
    Connect,
    asks_brokers,
    fail,
    json_output,
    parse_settings,
    print_json,
    print_table,
)
from magnetar.client.readable import ABSENT

if TYPE_CHECKING:
    from magnetar.client.configs import Entry, Resource


def _of_one_resource(*, is_required: bool) -> Callable[[Command], Command]:
    """Add the options that name a resource, which the command gets as `resource`.

    None if they name none and none is required. UsageError if they name two.
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

        # The last one added is shown first in the help.
        for option in (
            click.option("--group", "-g", metavar="GROUP", help="Settings of a consumer group."),
            click.option("--all-brokers", is_flag=True, help="Settings for every broker."),
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
    """Return the resource that the options name. UsageError: they name more than one."""
    from magnetar.client.configs import Resource
    from wire.resource_type import ResourceType

    named = [
        Resource(kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.BROKER, broker),
            # A broker without a name stands for the defaults of all brokers, as in the protocol.
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
@click.option("--changed", is_flag=True, help="Leave out defaults.")
@click.option("--doc", is_flag=True, help="Explain each setting.")
@json_output
@asks_brokers
def list_command(
    connect: Connect,
    resource: Resource | None,
    changed: bool,
    doc: bool,
    as_json: bool,
) -> None:
    """List settings with their values and sources.

    Without a topic, broker or group, list the topics, brokers and groups that have settings.
    """
    from magnetar.client.configs import describe_configs, list_resources

    with connect() as client:
        if resource is None:
            resources = list_resources(client)
        else:
            ((_, entries),) = describe_configs(client, [resource])
    if resource is None:
        if as_json:
            return print_json({"type": each.kind, "name": each.name} for each in resources)
        named = [(each.kind.replace("_", " "), each.name) for each in resources]
        return print_table(("type", "name"), named, "nothing has settings")
    # Filtered here: no version of DescribeConfigs can leave defaults out.
    shown = [entry for entry in entries if not (changed and entry.is_default)]
    if as_json:
        return print_json(entry.to_json(resource) for entry in shown)
    header = ("name", "value", "source", "meaning") if doc else ("name", "value", "source")
    rows = [_row(entry)[: len(header)] for entry in shown]
    print_table(header, rows, f"{resource}: everything is the default")


@configs.command("get", short_help="Print the values of settings, for scripts.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@json_output
@asks_brokers
def get_command(
    connect: Connect,
    names: tuple[str, ...],
    resource: Resource,
    as_json: bool,
) -> None:
    """Print the values of settings, one per line, for scripts.

    Exit code 1: there is no setting of that name.
    """
    from magnetar.client.configs import describe_configs
    from magnetar.client.readable import printable

    with connect() as client:
        ((_, entries),) = describe_configs(client, [resource], names)
    by_name = {entry.name: entry for entry in entries}
    # Before anything is printed: a script must not read half of the values.
    for name in names:
        if name not in by_name:
            fail(f"{resource} has no setting {name}. `magnetar configs list` shows its settings.")
    if as_json:
        return print_json(by_name[name].to_json(resource) for name in names)
    for name in names:
        # A line for each name, also without a value, so that lines and names can be paired.
        print(printable(by_name[name].value or ""))


@configs.command("set")
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@click.option("--dry-run", is_flag=True, help="Let the broker check everything, change nothing.")
@json_output
@asks_brokers
def set_command(
    connect: Connect,
    settings: tuple[str, ...],
    resource: Resource,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set settings, all of them or none.

    \b
    magnetar configs set --topic orders retention.ms=86400000
    """
    wanted = parse_settings(settings, "NAME=VALUE")
    from magnetar.client.configs import change_configs

    with connect() as client:
        change_configs(client, resource, wanted, validate_only=dry_run)
    if as_json:
        return print_json([{"resource": str(resource), "set": {} if dry_run else wanted}])
    done = ", ".join(f"{name}={value}" for name, value in wanted.items())
    print(f"{resource}: {done}{' could be set' if dry_run else ''}")


@configs.command("unset", short_help="Remove settings of a topic, broker or group.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_of_one_resource(is_required=True)
@json_output
@asks_brokers
def unset_command(
    connect: Connect,
    names: tuple[str, ...],
    resource: Resource,
    as_json: bool,
) -> None:
    """Remove settings of a topic, broker or group. The more general value applies again."""
    from magnetar.client.configs import change_configs, check_names

    with connect() as client:
        check_names(client, resource, names)
        change_configs(client, resource, {}, names)
    if as_json:
        return print_json([{"resource": str(resource), "unset": list(names)}])
    print(f"{resource}: {', '.join(names)} unset")


def _row(entry: Entry) -> tuple[str, ...]:
    # Brokers send null for it, which would look like "not set".
    value = "(secret)" if entry.is_sensitive else entry.value
    shown = ABSENT if value is None else value
    return entry.name, shown, entry.source, entry.documentation or ""
