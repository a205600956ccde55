"""The commands and programs that documents show, and a shell to run them in."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from compat_tests.brokers import MAGNETAR

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "
#: Stands for the rest of a line, or for lines, in what a document says that a command prints.
_REST = "..."
_COMMENT = re.compile(r"\s{2,}#.*$")


class Step(NamedTuple):
    """A command, and what the document shows of its output."""

    command: str
    shown: list[str]


def blocks(document: str, language: str) -> list[str]:
    """Return the blocks of code of a language, in their order."""
    text = (ROOT / document).read_text()
    return [code for name, code in _BLOCK.findall(text) if name == language]


def steps(document: str) -> Iterator[Step]:
    """Yield the commands of all `console` blocks."""
    for block in blocks(document, "console"):
        command = ""
        shown: list[str] = []
        for line in block.splitlines():
            if line.startswith(_PROMPT):
                if command:
                    yield Step(command, shown)
                command, shown = _COMMENT.sub("", line.removeprefix(_PROMPT)), []
            else:
                shown.append(line)
        if command:
            yield Step(command, shown)


def finding(programs: Path) -> dict[str, str]:
    """Return the environment of a shell that finds the `magnetar` of this folder."""
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run(
    command: str, bootstrap: str, directory: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Return what a shell prints for a command that talks to this broker. It must succeed."""
    environment = environment or finding(MAGNETAR.parent)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=directory,
        env={**environment, "MAGNETAR_BOOTSTRAP": bootstrap},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def unlike(shown: list[str], printed: str) -> str | None:
    """Return the first line that a document shows and the command did not print; None: all is so.

    `...` stands for any text of a line, and alone on a line for any lines.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in shown:
        words = " ".join(line.split())
        if words in ("", _REST):
            continue
        pattern = re.compile(
            re.escape(words).replace(r"\ \.\.\.", "(?: .*)?").replace(r"\.\.\.", ".*")
        )
        if not any(pattern.fullmatch(each) for each in lines):
            return line
    return None
