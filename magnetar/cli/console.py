"""`magnetar console`: the cluster in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import fail, names_brokers, reports_errors

if TYPE_CHECKING:
    from magnetar.client import Client
    from magnetar.client.security import Security

_EXTRA = "starlette", "uvicorn", "jinja2"


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
@names_brokers
@reports_errors
def console(
    listen: str,
    hosts: tuple[str, ...],
    schema_registry: str | None,
    read_only: bool,
    bootstrap_server: str | None,
    command_config: Path | None,
    profile: str | None,
    timeout_ms: int,
) -> None:
    """Show a cluster in a browser: open transactions and whom they hold back, groups and what they
    have yet to read, topics, records, settings, users.

    Where the settings say SASL, visitors log in as users of the cluster, whose ACLs hold; a user
    named in the settings is not used.
    """
    try:
        from magnetar.console.app import build_app
        from magnetar.console.run import bind, serve
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        fail(f"the console needs {missing.name}: pip install 'magnetar[console]'.")
    from magnetar.cli.settings import CLIENT_ID, resolve
    from magnetar.client import Client
    from magnetar.client.security import parse_security
    from magnetar.console.guard import allowed_hosts
    from magnetar.console.registry import Registry
    from magnetar.console.screens import Settings
    from wire.address import parse_address

    servers, settings = resolve(bootstrap_server, command_config, profile)
    if settings.get("security.protocol", "").upper().startswith("SASL"):
        # Each visitor brings these; without any the settings would be refused.
        settings = {"sasl.username": "visitor", "sasl.password": "visitor"} | settings

    def connect(security: Security) -> Client:
        return Client(servers, timeout_ms / 1000, CLIENT_ID, security)

    try:
        host, port = parse_address(listen)
    except ValueError as mistake:
        raise click.BadParameter(str(mistake), param_hint="--listen") from None
    registry = None if schema_registry is None else Registry(schema_registry)
    app = build_app(
        connect,
        parse_security(settings),
        Settings(servers, read_only, registry),
        allowed_hosts(host, hosts),
    )
    with bind(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host or "127.0.0.1"
        # The form of the line is a promise: scripts wait for it.
        print(
            f"magnetar: console ready on http://{shown}:{listener.getsockname()[1]}/",
            file=sys.stderr,
            flush=True,
        )
        serve(app, [listener])
