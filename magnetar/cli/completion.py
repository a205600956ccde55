"""`magnetar completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

from magnetar.cli.options import EXIT_FAILURE

_VARIABLE = "_MAGNETAR_COMPLETE"


@click.command("completion", short_help="Print what completes commands in bash, zsh or fish.")
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
    if found is None:
        click.echo(f"magnetar: error: there is no completion for {shell}.", err=True)
        raise SystemExit(EXIT_FAILURE)
    # Not found.source(): for bash it asks for the version of the bash that is installed here.
    shell_complete = found(context.find_root().command, {}, "magnetar", _VARIABLE)
    click.echo(found.source_template % shell_complete.source_vars())
