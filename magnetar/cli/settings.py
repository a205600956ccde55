"""How a command connects: options first, then a profile, then a file of Kafka's tools.

A profile is a table in `magnetar/profiles.toml` of the user's configuration directory:

    [production]
    bootstrap.servers = "kafka.example.org:9093"
    security.protocol = "SASL_SSL"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "ada"
    sasl.password = "secret"

Its names are Kafka's. So are those of `--command-config`, a .properties file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from magnetar.client import Client, ClientError
from magnetar.client.cluster import DEFAULT_BOOTSTRAP, parse_addresses
from magnetar.client.security import (
    BadSettings,
    parse_security,
    read_properties,
    with_providers,
)

CLIENT_ID = "magnetar-cli"
SERVERS = "bootstrap.servers"
_SERVERS_VARIABLE = "MAGNETAR_BOOTSTRAP"
#: The shell waits for completions while a person types.
_COMPLETION_TIMEOUT_S = 1.5


def profiles_path() -> Path:
    """Return where profiles are, whether or not there are any."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "magnetar" / "profiles.toml"


def read_profiles() -> dict[str, dict[str, str]]:
    """Return the settings of each profile; none without a file. BadSettings: it is damaged."""
    path = profiles_path()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise BadSettings(f"{path} is no TOML: {error}.") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadSettings(f"{path}: {name} is outside a profile, which begins with [NAME].")
    return {name: dict(_flat(table)) for name, table in tables.items()}


def connect(
    bootstrap: str | None, command_config: Path | None, profile: str | None, timeout_s: float
) -> Client:
    """Return a client, connected. ClientError: the settings are wrong, or no broker lets it in."""
    servers, settings = resolve(bootstrap, command_config, profile)
    return Client(servers, timeout_s, CLIENT_ID, parse_security(settings))


def resolve(
    bootstrap: str | None, command_config: Path | None, profile: str | None
) -> tuple[str, dict[str, str]]:
    """Return the brokers to begin with, and the settings of file and profile.

    ClientError: these settings, or MAGNETAR_BOOTSTRAP where it counts, have a mistake.
    """
    settings = {} if command_config is None else read_properties(command_config)
    if profile is not None:
        profiles = read_profiles()
        if profile not in profiles:
            known = f"It has {', '.join(profiles)}." if profiles else "It has no profiles at all."
            raise BadSettings(f"{profiles_path()} has no profile {profile!r}. {known}")
        settings |= profiles[profile]
    settings = with_providers(settings)
    servers = bootstrap or settings.get(SERVERS)
    if not servers and (servers := os.environ.get(_SERVERS_VARIABLE)):
        # For its mistakes only: the message then names the variable.
        parse_addresses(servers, _SERVERS_VARIABLE)
    return servers or DEFAULT_BOOTSTRAP, settings


def complete(
    context: click.Context, incomplete: str, ask: Callable[[Client], Iterable[str]]
) -> list[CompletionItem]:
    """Return the cluster's names that begin with `incomplete`; none if it does not answer."""
    given = context.params
    try:
        with connect(
            given.get("bootstrap_server"),
            given.get("command_config"),
            given.get("profile"),
            _COMPLETION_TIMEOUT_S,
        ) as client:
            return [CompletionItem(name) for name in ask(client) if name.startswith(incomplete)]
    # A message would stand in the middle of what is being typed.
    except ClientError:
        return []


def complete_profiles(incomplete: str) -> list[CompletionItem]:
    """Return the profiles whose names begin so."""
    try:
        return [CompletionItem(name) for name in read_profiles() if name.startswith(incomplete)]
    except BadSettings:
        return []


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield names with their dots: TOML reads `sasl.username` as a table `sasl`."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value)
