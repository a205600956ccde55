"""What README and the tutorials tell people to run does what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import documents
from magnetar.testing import start_broker

pytestmark = [pytest.mark.magnetar_only(reason="the documents are magnetar's")]
ADDRESS = "127.0.0.1:9092"
#: Run by compat_tests/test_newcomer.py and others: make, servers, pip, and Kafka's own directory.
ELSEWHERE = ("make ", "pip ", "magnetar serve", "magnetar import", "pyspark")


@pytest.mark.parametrize("document", ["README.md", "docs/tutorials/first_five_minutes.md"])
def test_the_commands_print_what_is_shown(document: str, tmp_path: Path) -> None:
    with start_broker(tmp_path / "data") as broker:
        ran = 0
        for command, shown in documents.steps(document):
            if not command.startswith(ELSEWHERE):
                printed = documents.run(command, broker.bootstrap_servers, tmp_path)
                missing = documents.unlike(shown, printed)
                assert missing is None, f"{command} does not print {missing!r} but {printed}"
                ran += 1
        assert ran >= 4


def test_the_programs_of_the_readme_run(tmp_path: Path) -> None:
    # compat_tests/test_cookbook.py runs the third, a test.
    shouting, reading, _ = documents.blocks("README.md", "python")
    with start_broker(tmp_path / "data") as broker:
        for program, said in ((shouting, "3 words, each exactly once"), (reading, "MAGNETS")):
            assert ADDRESS in program
            here = program.replace(ADDRESS, broker.bootstrap_servers)
            done = subprocess.run(
                [sys.executable, "-c", here], capture_output=True, text=True, timeout=90, check=True
            )
            assert said in done.stdout


def test_the_test_of_the_tutorial_passes(tmp_path: Path) -> None:
    (program,) = documents.blocks("docs/tutorials/from_testcontainers.md", "python")
    passes(program, tmp_path)


def passes(program: str, directory: Path) -> None:
    file = directory / "test_program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", str(file)]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
