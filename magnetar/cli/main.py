"""The `magnetar` command, and its subcommands `serve` and `completion`.

Exit codes of `serve`: 0 stopped as asked, 1 the broker failed, 2 a mistake in flags or
configuration, 130 stopped at once by a second signal, 137 a node did not end in time at the stop,
and was killed. Those of the other commands are in `commands`.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

import click

from magnetar import __version__
from magnetar.cli.commands import EXIT_OK, Commands

_SERVE_HELP = """Start a broker, in the foreground.

Settings have Kafka's names. Give them in a server.properties file (--config), or one by one (--set,
which overrides the file). --listen sets listeners, and --data-dir sets log.dirs. By default the
broker listens on 127.0.0.1:9092 and keeps its data in ./data.

When clients can connect, the broker prints a line with the word "ready". SIGTERM or SIGINT stops
the broker cleanly; a second signal stops it at once.
"""

_COMPLETION_VARIABLE = "_MAGNETAR_COMPLETE"
#: Where the other commands are, and the lines about them. Their modules are imported when a command
#: is called; help shows the lines without an import. A test compares them with the commands' own.
_PLACES = {
    "topics": (
        "magnetar.cli.topics:topics",
        "Create topics, look at them, change and delete them.",
    ),
    "configs": (
        "magnetar.cli.configs:configs",
        "Look at settings, and change them while brokers run.",
    ),
    "groups": (
        "magnetar.cli.groups:groups",
        "Look at consumer groups, move their offsets, delete them.",
    ),
    "offsets": (
        "magnetar.cli.offsets:offsets",
        "Look up offsets; delete those that groups committed.",
    ),
    "why": ("magnetar.cli.why:why", "Say why a group does not advance."),
    "top": ("magnetar.cli.top:top", "Watch rates, lag and open transactions."),
    "transactions": (
        "magnetar.cli.transactions:transactions",
        "Look at transactions, and abort them.",
    ),
    "producers": (
        "magnetar.cli.producers:producers",
        "Show the producers that partitions remember.",
    ),
    "users": ("magnetar.cli.users:users", "Look at the users of SCRAM, add and remove them."),
    "acls": ("magnetar.cli.acls:acls", "Look at access control lists, add and remove them."),
    "quotas": (
        "magnetar.cli.quotas:quotas",
        "Look at quotas of clients, set and remove them.",
    ),
    "cluster": ("magnetar.cli.cluster:cluster", "Show the brokers of the cluster."),
    "log-dirs": (
        "magnetar.cli.cluster:log_dirs",
        "Show the disks of brokers, and the sizes of topics.",
    ),
    "produce": ("magnetar.cli.produce:produce", "Write lines of standard input to a topic."),
    "consume": ("magnetar.cli.consume:consume", "Print the records of topics."),
    "console": ("magnetar.cli.console:console", "Show a cluster in a browser."),
    "trim": ("magnetar.cli.offsets:trim", "Delete the first records of partitions."),
    "dump": ("magnetar.cli.dump:dump", "Show the contents of a stopped broker's files."),
    "check": ("magnetar.cli.check:check", "Verify a stopped broker's data directory."),
    "repair": ("magnetar.cli.check:repair", "Mend a stopped broker's data directory."),
    "import": (
        "magnetar.cli.import_command:import_command",
        "Take over the topics of a stopped Apache Kafka.",
    ),
    "profiles": ("magnetar.cli.profiles:profiles", "Look at the profiles that --profile names."),
    "testing": ("magnetar.cli.testing:testing", "Brokers for tests in other languages."),
    "spark-jars": (
        "magnetar.cli.spark_jars:spark_jars",
        "Fetch the jars of Spark's Kafka connector.",
    ),
    "completion": ("magnetar.cli.main:completion", "Print completions for bash, zsh or fish."),
}


@click.group(cls=Commands, places=_PLACES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="magnetar %(version)s")
def main() -> None:
    """A broker for Kafka clients, and tools for it: acknowledged records are on disk, and a commit
    that has returned is visible."""


@main.command(help=_SERVE_HELP)
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on; port 0 picks one.")
@click.option("--data-dir", metavar="DIR", type=click.Path(), help="The directory of all data.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="A server.properties file.",
)
@click.option(
    "--set", "assignments", metavar="NAME=VALUE", multiple=True, help="One setting; repeatable."
)
@click.option(
    "--workers",
    metavar="N",
    default="1",
    show_default=True,
    help="How many processes to start: brokers of one cluster, on a port each. auto: one per core.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Join the cluster kept in this database: postgresql://USER@HOST:PORT/DATABASE.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="With --storage: the bucket for older batches, as s3://BUCKET/PREFIX.",
)
@click.option(
    "--allow-async-storage",
    is_flag=True,
    help="With --storage: serve even if every standby of the database may be behind.",
)
@click.option(
    "--node-id",
    metavar="N",
    type=click.IntRange(0, 2**31 - 1),
    help="The id of this broker. In a cluster the default is its former id, or a new one.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="The lowest level of the lines on standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(("auto", "console", "json")),
    default="auto",
    show_default=True,
    help="auto: console on a terminal, json elsewhere.",
)
def serve(
    listen: str | None,
    data_dir: str | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    workers: str,
    storage: str | None,
    objects: str | None,
    allow_async_storage: bool,
    node_id: int | None,
    log_level: str,
    log_format: str,
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until the broker heeds them itself.
        signal.signal(number, _stopped_early)
    # Imported here: the other commands and --help do without the broker's configuration.
    from magnetar.cli.serve import run
    from magnetar.cli.serve_flags import Flags

    flags = Flags(
        listen,
        data_dir,
        config_file,
        assignments,
        log_level,
        log_format,
        workers,
        storage,
        node_id,
        objects,
        allow_async_storage,
    )
    raise SystemExit(run(flags))


def _stopped_early(number: int, frame: object) -> NoReturn:
    """Stop a start: there is nothing yet that a clean stop would keep."""
    with suppress(OSError):
        # Whatever the signal has interrupted may be printing.
        os.write(1, b"magnetar: stopped during its start\n")
    raise SystemExit(EXIT_OK)


@click.command("completion", short_help="Print completions for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion of commands and options for a SHELL.

    \b
    magnetar completion bash > ~/.local/share/bash-completion/completions/magnetar
    magnetar completion zsh > "${fpath[1]}/_magnetar"
    magnetar completion fish > ~/.config/fish/completions/magnetar.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click completes each of the shells above"
    # Not source(): for bash it runs the installed bash to ask for its version.
    shell_complete = found(context.find_root().command, {}, "magnetar", _COMPLETION_VARIABLE)
    click.echo(found.source_template % shell_complete.source_vars())


if __name__ == "__main__":
    main()
