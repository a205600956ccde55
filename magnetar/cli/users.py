"""`magnetar users`: list, add, remove the users of SCRAM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from magnetar.cli.commands import (
    Commands,
    Connect,
    asks_brokers,
    confirm,
    fail,
    json_output,
    never_asks,
    print_json,
    print_table,
)

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: The bounds that Kafka's brokers have; the smallest is Kafka's default too.
_ITERATIONS = click.IntRange(4096, 16384)


@click.group(cls=Commands)
def users() -> None:
    """Look at the users of SCRAM, add and remove them."""


@users.command("list")
@json_output
@asks_brokers
def list_command(connect: Connect, as_json: bool) -> None:
    """List users, and the mechanisms by which each can log in.

    Users of PLAIN are in the broker's own settings, and are not listed.
    """
    from magnetar.client.users import list_users

    with connect() as client:
        found = list_users(client)
    if as_json:
        return print_json(user.to_json() for user in found)
    rows = [(user.name, ", ".join(sorted(user.iterations))) for user in found]
    print_table(("user", "mechanisms"), rows, "no users")


@users.command("add", short_help="Add a user, or change a password.")
@click.argument("name", metavar="NAME")
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help="The file's first line is the password; - is standard input. By default you are asked.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    multiple=True,
    default=_MECHANISMS,
    help="Let the user log in by this mechanism only. Repeatable.  [default: both]",
)
@click.option(
    "--iterations",
    type=_ITERATIONS,
    default=4096,
    show_default=True,
    help="More iterations make each login, and each guess of the password, slower.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write to the data directory of a stopped broker, as for the first user.",
)
@json_output
@asks_brokers
def add_command(
    connect: Connect,
    name: str,
    password_file: IO[str] | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Add a user, or change a user's password.

    \b
    magnetar users add admin --password-file admin.txt --data-dir data
    magnetar users add ada --profile production
    """
    if password_file is not None:
        password = password_file.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError(
            "Give the password: --password-file FILE, where - is standard input."
        )
    if not password:
        raise click.UsageError("The password is empty.")
    if data_dir is not None:
        from magnetar.storage import offline

        try:
            offline.set_password(data_dir, name, mechanisms, password, iterations)
        except offline.InUse as refusal:
            fail(str(refusal))
    else:
        from magnetar.client.users import set_password

        with connect() as client:
            # One at a time: a user that a request names twice is refused.
            for mechanism in mechanisms:
                set_password(client, name, mechanism, password, iterations)
    if as_json:
        return print_json([{"user": name, "mechanisms": dict.fromkeys(mechanisms, iterations)}])
    print(f"{name}: can log in by {' and '.join(mechanisms)}")


@users.command("remove")
@click.argument("name", metavar="NAME")
@never_asks
@json_output
@asks_brokers
def remove_command(connect: Connect, name: str, yes: bool, as_json: bool) -> None:
    """Remove a user. Connections that the user has stay open; ACLs of the user stay too."""
    from magnetar.client.users import remove_user

    with connect() as client:
        confirm(f"Remove {name}?", yes=yes)
        remove_user(client, name)
    if as_json:
        return print_json([{"user": name, "removed": True}])
    print(f"{name}: removed")
