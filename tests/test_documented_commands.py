"""Every `magnetar` command that a document shows exists, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from magnetar.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
#: Those that a tool writes from the commands are right anyway, and old decisions tell of old times.
DOCUMENTS = [
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spark_examples/*.md"))
    if path.name not in ("cli.md", "CHANGELOG.md") and path.parent.name != "decisions"
]
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(magnetar [^`]+)`")
#: Ends one command of a line of a shell, and may begin another.
_BETWEEN = frozenset("|&;()<>") | {"&&", "||", ">>", "$("}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command, without `magnetar` itself."""
    lines = [found.replace("\n", " ") for found in _INLINE.findall(text)]
    for block in _FENCED.findall(text):
        lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        yield from commands_of(line.removeprefix("$ "))


def commands_of(line: str) -> Iterator[list[str]]:
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        found = list(words)
    except ValueError:
        return  # Output, or a part of a program: no line of a shell.
    while "magnetar" in found:
        begin = found.index("magnetar")
        end = next((n for n in range(begin, len(found)) if found[n] in _BETWEEN), len(found))
        command, is_first = found[begin + 1 : end], begin == 0 or found[begin - 1] in _BETWEEN
        found = found[end:]
        if is_first and command and re.fullmatch(r"[a-z-]+", command[0]):
            yield command


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_exist(path: Path) -> None:
    for words in commands(path.read_text()):
        text = " ".join(words)
        context = click.Context(main, info_name="magnetar")
        command: click.Command = main
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{text}: there is no command {words[0]}"
            context = click.Context(found, info_name=words.pop(0), parent=context)
            command = found
        known = {each for parameter in command.get_params(context) for each in parameter.opts}
        # The value of an option may begin with a minus sign too, such as -7d.
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert given <= known, text


def test_documents_show_commands() -> None:
    assert sum(len(list(commands(path.read_text()))) for path in DOCUMENTS) > 40
