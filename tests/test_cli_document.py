"""docs/cli.md is what the commands say; every command can be asked for help; shells complete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from magnetar.cli.main import main
from tools.cli_document import document

#: The modules that every command imports.
DOOR = {"magnetar", "magnetar.cli", "magnetar.cli.main", "magnetar.cli.commands"}


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_the_documentation_is_that_of_the_commands() -> None:
    page = Path(__file__).parents[1] / "docs" / "cli.md"
    assert page.read_text() == document(), "run python -m tools.cli_document > docs/cli.md"


def test_every_option_of_every_command_has_help() -> None:
    silent = [
        f"{' '.join(path)} {parameter.opts}"
        for path, command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert silent == []


def test_what_helps_is_never_cut_short() -> None:
    cut = [
        " ".join(path)
        for path, command in commands(main)
        if path and command.get_short_help_str(limit=62).endswith("...")
    ]
    assert cut == []


def test_the_lines_of_help_are_those_of_the_commands() -> None:
    context = click.Context(main)
    for name, (_, line) in main.places.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=62) == line, name


def test_help_imports_no_command() -> None:
    """So that it stands there at once."""
    script = (
        "import sys\n"
        "from magnetar.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(*[name for name in sys.modules if name.startswith(('magnetar', 'wire'))])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert set(found.stdout.splitlines()[-1].split()) <= DOOR


@pytest.mark.parametrize("group", ["", "topics", "configs", "transactions"])
def test_a_group_alone_shows_its_commands(group: str) -> None:
    result = CliRunner().invoke(main, group.split())
    assert result.exit_code == 0
    assert "Commands:" in result.stdout


def test_a_mistyped_command_is_guessed() -> None:
    result = CliRunner().invoke(main, ["topcis"])
    assert result.exit_code == 2
    assert "There is no command 'topcis'. Did you mean topics?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_MAGNETAR_COMPLETE" in result.stdout


def test_commands_and_options_are_completed() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "magnetar"],
        env={
            "_MAGNETAR_COMPLETE": "bash_complete",
            "COMP_WORDS": "magnetar topics create --par",
            "COMP_CWORD": "3",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "plain,--partitions\n"


def test_serving_imports_nothing_of_the_other_commands() -> None:
    """So that the time to the first acknowledgement does not grow with them."""
    script = (
        "import sys\n"
        "from magnetar.cli.main import main\n"
        "main.get_command(None, 'serve')\n"
        "print(*[name for name in sys.modules if name.startswith(('magnetar', 'wire'))])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) <= DOOR
