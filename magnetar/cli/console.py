"""`magnetar console`: the cluster in a browser."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from magnetar.cli.commands import complete_profiles, fail, names_brokers, reports_errors

if TYPE_CHECKING:
    from magnetar.client import Client
    from magnetar.client.security import Security
    from magnetar.console.app import Cluster

_EXTRA = "starlette", "uvicorn", "jinja2"
#: A cluster's name is a part of the addresses of its pages.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Place(NamedTuple):
    """A cluster of the console as the options name it."""

    name: str
    servers: str | None
    profile: str | None


@click.command("console", short_help="Show a cluster in a browser.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="Address to listen on; port 0 picks one.",
)
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that browsers reach the console by, beside that of --listen. Repeatable.",
)
@click.option(
    "--schema-registry",
    metavar="URL",
    help="A schema registry of Confluent's interface: Avro and Protobuf are shown as JSON.",
)
@click.option("--read-only", is_flag=True, help="Show, and change nothing.")
@click.option(
    "--cluster",
    "wanted",
    metavar="NAME[=HOST:PORT,...]",
    multiple=True,
    shell_complete=complete_profiles,
    help="One of several clusters: a profile, or a name and its brokers. Repeatable.",
)
@names_brokers
@reports_errors
def console(
    listen: str,
    hosts: tuple[str, ...],
    schema_registry: str | None,
    read_only: bool,
    wanted: tuple[str, ...],
    bootstrap_server: str | None,
    command_config: Path | None,
    profile: str | None,
    timeout_ms: int,
) -> None:
    """Show a cluster in a browser: open transactions and the readers that they hold back, groups
    and their lag, topics, records, settings, users.

    Ctrl-C or SIGTERM ends it.

    If the settings say SASL, visitors log in as users of the cluster, and the ACLs of these users
    apply. The console does not use a user that the settings name.

    \b
    magnetar console --bootstrap 127.0.0.1:9092
    magnetar console --cluster production --cluster here=127.0.0.1:9092
    """
    try:
        from magnetar.console.app import build_app
        from magnetar.console.run import bind, serve
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        fail(f"the console needs {missing.name}: pip install 'magnetar[console]'.")
    from magnetar.console.guard import allowed_hosts
    from wire.address import parse_address

    try:
        host, port = parse_address(listen)
    except ValueError as mistake:
        raise click.BadParameter(str(mistake), param_hint="--listen") from None
    # A profile of the environment is for other commands.
    source = click.get_current_context().get_parameter_source("profile")
    if wanted and (bootstrap_server or source is ParameterSource.COMMANDLINE):
        raise click.UsageError("--cluster stands for --bootstrap and --profile.")
    places = [_place(each) for each in wanted]
    if len({each.name for each in places}) < len(places):
        raise click.UsageError("Two clusters have one name.")
    if not places:
        places = [_Place("", bootstrap_server, profile)]
    try:
        allowed = allowed_hosts(host, hosts)
    except ValueError as mistake:
        raise click.BadParameter(str(mistake), param_hint="--allow-host") from None
    app = build_app(
        _clusters(places, command_config, timeout_ms, schema_registry, read_only), allowed
    )
    with bind(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host or "127.0.0.1"
        # The form of the line is a promise: scripts wait for it.
        line = f"magnetar: console ready on http://{shown}:{listener.getsockname()[1]}/"
        serve(app, [listener], lambda: print(line, file=sys.stderr, flush=True))


def _place(text: str) -> _Place:
    name, is_named, servers = text.partition("=")
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is no name of a cluster: letters, digits, . _ - stand in addresses.",
            param_hint="--cluster",
        )
    if not is_named:
        return _Place(name, None, name)
    from magnetar.client import ClientError
    from magnetar.client.cluster import parse_addresses

    try:
        # A typing error is a mistake of the command, and no failed connection.
        parse_addresses(servers)
    except ClientError as mistake:
        raise click.BadParameter(str(mistake), param_hint="--cluster") from None
    return _Place(name, servers, None)


def _clusters(
    places: Sequence[_Place],
    command_config: Path | None,
    timeout_ms: int,
    schema_registry: str | None,
    read_only: bool,
) -> list[Cluster]:
    """Return the clusters, each with pages of its own where there are several."""
    from magnetar.cli.settings import CLIENT_ID, resolve
    from magnetar.client import Client
    from magnetar.client.security import parse_security
    from magnetar.console.app import Cluster
    from magnetar.console.registry import Registry
    from magnetar.console.screens import Settings

    registry = None if schema_registry is None else Registry(schema_registry)
    roots = [(each.name, f"/c/{each.name}") for each in places if each.name]
    found = []
    for place in places:
        servers, settings = resolve(place.servers, command_config, place.profile)
        if settings.get("security.protocol", "").upper().startswith("SASL"):
            # Each visitor brings these; without any the settings would be refused.
            settings = {"sasl.username": "visitor", "sasl.password": "visitor"} | settings

        def connect(security: Security, servers: str = servers) -> Client:
            return Client(servers, timeout_ms / 1000, CLIENT_ID, security)

        root = f"/c/{place.name}" if place.name else ""
        shown = Settings(servers, read_only, registry, name=place.name, root=root, others=roots)
        found.append(Cluster(connect, parse_security(settings), shown))
    return found
