"""`magnetar profiles`: the stored ways to connect."""

from __future__ import annotations

import click

from magnetar.cli.commands import Commands, json_output, print_json, print_table, reports_errors
from magnetar.client.readable import ABSENT

_SHOWN = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username")


@click.group(cls=Commands)
def profiles() -> None:
    """Look at the profiles that --profile names."""


@profiles.command("list")
@json_output
@reports_errors
def list_command(as_json: bool) -> None:
    """List profiles, without their passwords.

    They are tables in magnetar/profiles.toml of the configuration directory, ~/.config or
    XDG_CONFIG_HOME. Names are Kafka's:

    \b
    [production]
    bootstrap.servers = "kafka.example.org:9093"
    security.protocol = "SASL_SSL"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "ada"
    sasl.password = "secret"
    """
    from magnetar.cli.settings import profiles_path, read_profiles

    found = read_profiles()
    if as_json:
        return print_json(
            {"profile": name, **{each: settings.get(each) for each in _SHOWN}}
            for name, settings in found.items()
        )
    rows = [
        (name, *(settings.get(each, ABSENT) for each in _SHOWN)) for name, settings in found.items()
    ]
    header = ("profile", "servers", "protocol", "mechanism", "user")
    print_table(header, rows, f"no profiles in {profiles_path()}")
