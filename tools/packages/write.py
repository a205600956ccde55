"""Writes the man page and the completions that the wheel carries: `python -m tools.packages.write`.

All of it comes from the commands. A test compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from magnetar import __version__
from magnetar.cli.main import main

PLACE = Path(__file__).parent
SHELLS = ("bash", "zsh", "fish")
_END = """.SH FILES
.TP
.I ~/.config/magnetar/profiles.toml
Profiles: how to connect, by name.
.SH ENVIRONMENT
.TP
.B MAGNETAR_BOOTSTRAP
Brokers to begin with, where no option and no profile names any.
.TP
.B MAGNETAR_PROFILE
The profile, where no option names one.
.SH "EXIT STATUS"
0 done; 1 a broker could not be reached or refused, or files are damaged; 2 a mistake in the
command; 130 interrupted.
"""


def files() -> dict[Path, str]:
    """Return what the files have to hold."""
    found = {PLACE / "man" / "magnetar.1": man_page()}
    for shell in SHELLS:
        result = CliRunner().invoke(main, ["completion", shell])
        found[PLACE / "completions" / f"magnetar.{shell}"] = result.stdout
    return found


def man_page() -> str:
    """Return the page in the language of man(7)."""
    lines = [
        f'.TH MAGNETAR 1 "" "magnetar {__version__}" "User Commands"',
        ".SH NAME",
        "magnetar \\- a broker for Kafka clients, and tools for it",
        ".SH SYNOPSIS",
        ".B magnetar",
        "COMMAND [OPTIONS] [ARGS]...",
        ".SH DESCRIPTION",
        *_text(main.help or ""),
        ".SH COMMANDS",
    ]
    for path, command in _commands(main, "magnetar"):
        context = click.Context(command, info_name=path)
        lines += [f'.SS "{path}"', *_text(command.help or "")]
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if isinstance(parameter, click.Option) and record is not None:
                lines += [".TP", f".B {_escaped(record[0])}", _escaped(" ".join(record[1].split()))]
    return "\n".join(lines) + "\n" + _END


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is no group, with the words that call it."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs. One that click does not wrap stays as it is."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield from (".nf", _escaped(paragraph[1:].strip("\n")), ".fi")
        else:
            yield from (".PP", _escaped(" ".join(paragraph.split())))


def _escaped(text: str) -> str:
    """Return the text as man(7) takes it: its backslashes, minus signs, and lines of requests."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
