"""The `magnetar` command, and its subcommands `serve` and `completion`.

Exit codes of `serve`: 0 stopped as asked, 1 the broker failed, 2 a mistake in flags or
configuration, 130 stopped at once by a second signal. Those of the others are in `commands`.
"""

from __future__ import annotations

import click

from magnetar import __version__
from magnetar.cli.commands import Commands

_SERVE_HELP = """Start a broker, in the foreground.

Settings have Kafka's names. They come from --config, a server.properties file, and from --set,
which wins; --listen and --data-dir stand for listeners and log.dirs. Without any of them the broker
listens on 127.0.0.1:9092 and keeps its data in ./data.

A line with the word "ready" says that clients can connect. SIGTERM or SIGINT stops the broker
cleanly, a second one at once.
"""

_COMPLETION_VARIABLE = "_MAGNETAR_COMPLETE"
#: Where the other commands are. Their modules are imported when a command is called.
_PLACES = {
    "topics": "magnetar.cli.topics:topics",
    "configs": "magnetar.cli.configs:configs",
    "groups": "magnetar.cli.groups:groups",
    "why": "magnetar.cli.why:why",
    "transactions": "magnetar.cli.transactions:transactions",
    "users": "magnetar.cli.users:users",
    "acls": "magnetar.cli.acls:acls",
    "produce": "magnetar.cli.produce:produce",
    "consume": "magnetar.cli.consume:consume",
    "dump": "magnetar.cli.dump:dump",
    "check": "magnetar.cli.check:check",
    "repair": "magnetar.cli.check:repair",
    "import": "magnetar.cli.import_command:import_command",
    "profiles": "magnetar.cli.profiles:profiles",
    "spark-jars": "magnetar.cli.spark_jars:spark_jars",
    "completion": "magnetar.cli.main:completion",
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
    help="How many processes serve, as one cluster of brokers on one port each; auto: one a core.",
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
    log_level: str,
    log_format: str,
) -> None:
    # Imported here: the other commands and --help do without the broker's configuration.
    from magnetar.cli.serve import Flags, run

    flags = Flags(listen, data_dir, config_file, assignments, log_level, log_format, workers)
    raise SystemExit(run(flags))


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
