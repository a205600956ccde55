"""What every command is made of: groups that import lazily, shared options, errors, JSON, tables.

Exit codes: 0 done; 1 a broker could not be reached or refused, or files are damaged; 2 a mistake
in the command; 130 interrupted. Those of `serve` are in `main`.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from magnetar.client import Client

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
#: The longest line about a command in the help of its group.
_SHORT_HELP_MAX = 62
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
#: The system's clocks and the protocol hold no time that is much longer.
_DURATION_MS_MAX = 100_000 * _UNITS_MS["d"]
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "e": "\x1b", "a": "\a"}
_NOT_ALLOWED = "The broker's ACLs do not allow it."
#: What a person may do about an error code.
_ADVICE = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`magnetar topics list` shows the topics.",
    "TOPIC_ALREADY_EXISTS": "--if-not-exists accepts it as it is.",
    "INVALID_CONFIG": "`magnetar configs list` shows names and values.",
    "GROUP_ID_NOT_FOUND": "`magnetar groups list` shows the groups.",
    "NON_EMPTY_GROUP": "Stop the group's members first.",
    "GROUP_AUTHORIZATION_FAILED": _NOT_ALLOWED,
    "TOPIC_AUTHORIZATION_FAILED": _NOT_ALLOWED,
    "CLUSTER_AUTHORIZATION_FAILED": _NOT_ALLOWED,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _NOT_ALLOWED,
}

Command = Callable[..., None]
Connect = Callable[[], "Client"]


class Commands(click.Group):
    """A group of commands. Their modules are imported when one is called.

    So `magnetar serve` and `magnetar --help` do not load what the other commands need. Without a
    command, a group shows its help.
    """

    def __init__(
        self, *args: Any, places: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        """`places`: `module:attribute` and the line of help by the command's name, in order."""
        # click would print the help as a mistake, with exit code 2.
        kwargs.setdefault("no_args_is_help", False)
        super().__init__(*args, **kwargs)
        self.places = dict(places or {})

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as failure:
            # click prints help outside of `reports_errors`.
            fail_by(failure)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in self.places:
            place, _ = self.places[cmd_name]
            module, _, attribute = place.partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command), place
            found = command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [
            (name, self.commands[name].get_short_help_str(_SHORT_HELP_MAX))
            for name in self.commands
        ]
        lines += [(name, line) for name, (_, line) in self.places.items()]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # click would print "Aborted!", with the exit code of a failure.
            raise SystemExit(EXIT_INTERRUPTED) from None
        except click.Abort as aborted:
            # At a question click makes an Abort of Ctrl-C; the answer "no" is one, too.
            if isinstance(aborted.__context__, KeyboardInterrupt):
                raise SystemExit(EXIT_INTERRUPTED) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            # This import takes 5 ms, which a command that exists need not pay.
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Completion parses incomplete lines: help in its output would be taken for words.
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)


class _Duration(click.ParamType[int]):
    """`500ms`, `30s`, `15m`, `2h`, `1d`; the value is in milliseconds."""

    name = "duration"

    def __init__(self, *, is_positive: bool = False) -> None:
        self._is_positive = is_positive

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        # click converts defaults as well, which are numbers already.
        if isinstance(value, int):
            return value
        found = duration_ms(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 500ms, 30s, 15m, 2h or 1d.", param, context)
        if found > _DURATION_MS_MAX:
            self.fail(f"{value!r} is longer than 100000d.", param, context)
        if self._is_positive and not found:
            self.fail(f"{value!r} is no time at all.", param, context)
        return found


class _Delimiter(click.ParamType[bytes]):
    """A delimiter of one or more bytes, typed with escapes."""

    name = "delimiter"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            delimiter = unescape(str(value)).encode()
        except ValueError as mistake:
            self.fail(str(mistake), param, context)
        if not delimiter:
            self.fail("a delimiter has at least one character.", param, context)
        return delimiter


DURATION = _Duration()
SOME_TIME = _Duration(is_positive=True)
DELIMITER = _Delimiter()
json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
json_lines = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
never_asks = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask. Without a terminal no command asks."
)


def duration_ms(text: str) -> int | None:
    """Return the ms of `500ms`, `30s`, `15m`, `2h` or `1d`; None for another text."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else round(float(found[1]) * _UNITS_MS[found[2]])


def unescape(text: str) -> str:
    r"""Return the text with `\n`, `\t`, `\x00` and the like replaced. ValueError: a bad escape."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        if name[0] == "x" and len(name) > 1:
            return chr(int(name[1:], 16))
        if name not in _ESCAPED:
            raise ValueError(f"\\{name} is no escape: there are \\n \\t \\r \\0 \\e \\a \\\\ \\xNN")
        return _ESCAPED[name]

    return _ESCAPE.sub(replaced, text)


def asks_brokers(command: Command) -> Command:
    """Add the options that say how to connect, report errors, and pass `connect`."""
    # Wrapped inside: the mistakes that click finds in options keep their exit code 2.
    reported = reports_errors(command)

    @functools.wraps(command)
    def run(
        *,
        bootstrap_server: str | None,
        command_config: Path | None,
        profile: str | None,
        timeout_ms: int,
        **arguments: Any,
    ) -> None:
        def connect() -> Client:
            from magnetar.cli.settings import connect

            return connect(bootstrap_server, command_config, profile, timeout_ms / 1000)

        reported(connect=connect, **arguments)

    return names_brokers(run)


def names_brokers(command: Command) -> Command:
    """Add the options that say how to connect, and nothing else."""
    for option in _HOW_TO_CONNECT:
        command = option(command)
    return command


def reports_errors(command: Command) -> Command:
    """Turn an error of the command into one line on standard error, and exit code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        from magnetar.client import ClientError, Refused

        try:
            command(*args, **kwargs)
            # Output that cannot be written is an error of the command, so it is flushed here.
            print(end="", flush=True)
        except BrokenPipeError:
            # The reader of the output, `head` for example, has closed it. click ends the command
            # quietly.
            raise
        except OSError as failure:
            fail_by(failure)
        except Refused as failure:
            fail(explained(failure), failure.code.name)
        except ClientError as failure:
            fail(explained(failure))

    return run


def fail(message: str, code: str | None = None) -> NoReturn:
    """Print the error, as JSON if the command prints JSON, and exit with code 1.

    `code` is the name of the broker's error code.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get("as_json"):
        print(json.dumps({"error": {"code": code, "message": message}}), file=sys.stderr)
    else:
        from magnetar.client.readable import printable

        print(f"magnetar: error: {printable(message)}", file=sys.stderr)
    raise SystemExit(EXIT_FAILURE) from None


def fail_by(failure: OSError) -> NoReturn:
    """Print an error of a file or a standard stream, and exit with code 1."""
    forget_output()
    if failure.errno is not None and failure.filename is None:
        fail(f"standard input or output: {failure.strerror}")
    fail(plain(failure))


def explained(failure: Exception) -> str:
    """Return the failure's message, followed by what a person may do."""
    from magnetar.client import Refused, Unreachable

    advice = ""
    if isinstance(failure, Unreachable):
        advice = (
            "--bootstrap names another broker, --command-config says how to connect, --timeout"
            " waits longer."
        )
    elif isinstance(failure, Refused):
        advice = _ADVICE.get(failure.code.name, "")
    return f"{sentence(failure)} {advice}" if advice else str(failure)


def plain(error: OSError) -> str:
    """Return the file that an error is about, if it names one, and the error in words."""
    return str(error) if error.filename is None else f"{error.filename}: {error.strerror}"


def sentence(failure: Exception) -> str:
    """Return the failure's message as a sentence, so that another one can follow."""
    message = str(failure)
    return message if message.endswith((".", "?")) else f"{message}."


def open_streams() -> None:
    """Put /dev/null in the place of standard streams that are closed; escape what stdout lacks."""
    # In the order of their descriptors: each gets the lowest that is free, its own.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  # kept open
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def forget_output() -> None:
    """Drop the output that could not be written: Python would try to write it again at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_json(values: Iterable[dict[str, Any]]) -> None:
    """Print a JSON array of objects."""
    print(json.dumps(list(values), indent=2))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> None:
    """Print a table; without rows print `nothing` on standard error."""
    from magnetar.cli.tables import table

    lines = list(rows)
    if lines:
        print(table(header, lines))
    else:
        print(nothing, file=sys.stderr)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `yes`; the command ends here if the answer is no."""
    # A script cannot answer: its call says what is wanted.
    if not yes and sys.stdin.isatty():
        from magnetar.client.readable import printable

        click.confirm(printable(question), abort=True, err=True)


def parse_settings(texts: Iterable[str], hint: str) -> dict[str, str]:
    """Return the NAME=VALUE of each text; the last one of a name wins.

    Raises BadParameter that names `hint`, the option or argument.
    """
    found = {}
    for text in texts:
        # At the first `=`: a value may contain more of them.
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(
                f"{text!r} is not NAME=VALUE, as retention.ms=60000.", param_hint=hint
            )
        found[name.strip()] = value.strip()
    return found


def complete_topics(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the topics whose names begin so."""
    from magnetar.cli.settings import complete

    return complete(
        context, incomplete, lambda client: sorted({topic for topic, _ in client.topics()})
    )


def complete_groups(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the groups whose names begin so."""
    from magnetar.cli.settings import complete
    from magnetar.client.groups import list_groups

    return complete(
        context, incomplete, lambda client: [each.group_id for each in list_groups(client)]
    )


def complete_profiles(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from magnetar.cli.settings import complete_profiles as complete_names

    return complete_names(incomplete)


def _addresses(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from magnetar.client import ClientError
    from magnetar.client.cluster import parse_addresses

    try:
        # Parsed here for its mistakes only, so that a typing error is a usage error and no failed
        # connection.
        parse_addresses(value)
    except ClientError as mistake:
        raise click.BadParameter(str(mistake), context, param) from None
    return value


#: The last one is shown first in the help.
_HOW_TO_CONNECT = (
    click.option(
        "--timeout",
        "timeout_ms",
        type=SOME_TIME,
        default="10s",
        show_default=True,
        help="How long to wait for each answer.",
    ),
    click.option(
        "--profile",
        metavar="NAME",
        envvar="MAGNETAR_PROFILE",
        show_envvar=True,
        shell_complete=complete_profiles,
        help="Connect as this profile says, which `magnetar profiles list` shows.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A .properties file of Kafka's tools, with security.protocol and the like.",
    ),
    click.option(
        "--bootstrap",
        "-b",
        "--bootstrap-server",
        "bootstrap_server",
        metavar="HOST:PORT",
        callback=_addresses,
        help="A broker to begin with, or several separated by commas.  [default: that of the"
        " profile or the file, MAGNETAR_BOOTSTRAP, 127.0.0.1:9092]",
    ),
)
