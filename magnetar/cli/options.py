"""What the commands that talk to a broker have in common: options, errors, exit codes, JSON.

Exit codes: 0 done, 1 the broker could not be reached or refused, 2 a mistake in the options,
130 interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec

import click

from magnetar.cli.readable import DurationType

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
DURATION = DurationType()

P = ParamSpec("P")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """What stops the command is one line on standard error, and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from magnetar.client.cluster import ClientError

        try:
            command(*args, **kwargs)
            print(end="", flush=True)  # What could not be written is known now.
        except BrokenPipeError:
            raise  # Whoever read the output has enough; click ends the command quietly.
        except OSError as failure:
            forget_output()
            print(f"magnetar: error: {failure}", file=sys.stderr)
            raise SystemExit(EXIT_FAILURE) from None
        except ClientError as failure:
            print(f"magnetar: error: {failure}", file=sys.stderr)
            raise SystemExit(EXIT_FAILURE) from None

    return run


def forget_output() -> None:
    """Let go of what could not be written: Python would try, and complain, again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _addresses(context: click.Context, param: click.Parameter, value: str) -> str:
    from magnetar.client.cluster import ClientError, parse_addresses

    try:
        parse_addresses(value)
    except ClientError as mistake:
        raise click.BadParameter(str(mistake), context, param) from None
    return value


bootstrap = click.option(
    "--bootstrap",
    "-b",
    "--bootstrap-server",
    "bootstrap_server",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="MAGNETAR_BOOTSTRAP",
    show_envvar=True,
    callback=_addresses,
    help="A broker to begin with; more than one separated by commas.",
)
timeout = click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    default="10s",
    show_default=True,
    help="How long to wait for one answer.",
)
json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(values: Iterable[dict[str, Any]]) -> None:
    """Print a JSON array of objects."""
    print(json.dumps(list(values), indent=2))


def parse_settings(texts: Iterable[str], hint: str) -> dict[str, str]:
    """Return the NAME=VALUE of each text; the last one of a name wins.

    Raises BadParameter that names `hint`, the option or argument.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(
                f"{text!r} is not NAME=VALUE, as retention.ms=60000.", param_hint=hint
            )
        found[name.strip()] = value.strip()
    return found
