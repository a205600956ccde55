"""Writes docs/cli.md from the commands: `python -m tools.cli_document > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import fill

import click

from magnetar.cli.main import main

_COLUMNS = 120
#: The introduction describes these options.
_SHARED = ("bootstrap_server", "command_config", "profile", "timeout_ms")
_INTRODUCTION = """# Command line

Written by `python -m tools.cli_document` from the commands; do not edit it. `--help` after any
command says the same.

Commands that talk to a broker work with magnetar and with Apache Kafka. All of them have four
options that are not repeated below. `--bootstrap HOST:PORT[,HOST:PORT...]` (`-b`,
`--bootstrap-server`) names brokers to begin with. `--command-config FILE` and `--profile NAME` (or
`MAGNETAR_PROFILE` of the environment) say how to connect, over TLS or with a login:
[security_clients.md](security_clients.md). Without `--bootstrap` the brokers are those of the
profile, of the file, of `MAGNETAR_BOOTSTRAP`, or 127.0.0.1:9092. `--timeout 10s` bounds the wait
for each answer.

With `--json` a command prints an array of objects, one for each thing that it lists or changes.
`consume`, `dump`, `check` and `repair` print one object per line instead, as they go. Errors go to
standard error: with `--json` as `{"error": {"code": NAME, "message": TEXT}}`, where NAME is Kafka's
name of the error code, or null.

Exit codes: 0 done; 1 a broker could not be reached or refused, or files are damaged; 2 a mistake in
the command, which is always printed as text; 130 interrupted. An error message says what happened,
to what, and what to do.
"""


def document() -> str:
    """Return the whole page."""
    return "\n".join([_help(_INTRODUCTION), *_described(main, None, "magnetar", 2)]) + "\n"


def _described(
    command: click.Command, parent: click.Context | None, name: str, level: int
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    if parent is not None:
        yield f"{'#' * level} {context.command_path}\n"
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"```console\n$ {usage}\n```\n"
        yield _help(command.help or "")
        yield from _options(command, context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _described(found, context, each, level + (parent is not None))


def _help(text: str) -> str:
    """Return help as Markdown. A paragraph that click does not wrap becomes a block of code."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            parts.append(f"```console\n{paragraph.removeprefix(chr(8)).strip()}\n```")
        else:
            parts.append(fill(" ".join(paragraph.split()), _COLUMNS, break_long_words=False))
    return "\n\n".join(parts) + "\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
        and parameter.name not in _SHARED
        and "--help" not in parameter.opts
    ]
    if rows:
        yield "| option | |\n|---|---|"
        for option, meaning in rows:
            yield f"| `{_cell(option)}` | {_cell(meaning)} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")
