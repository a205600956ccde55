"""A newcomer's path: a fresh clone, `make serve`, the first messages, the console, the demo.

The clone makes an environment of its own, as everybody's does. It finds the libraries of this one
in it, so that nothing is downloaded twice; all else is what `make` does for a newcomer.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from compat_tests import documents

pytestmark = [
    pytest.mark.magnetar_only(reason="the repository is magnetar's"),
    # It installs what the first test of CI has installed before, and counts words for a minute.
    pytest.mark.timeout(900),
]
#: The commands of the README that need no more than a broker.
FIRST = ("magnetar topics create", "printf", "magnetar consume", "magnetar topics describe")


class Clone(NamedTuple):
    """A fresh clone, with the broker that `make serve` has started in it."""

    folder: Path
    bootstrap: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    folder = tmp_path_factory.mktemp("newcomer") / "magnetar"
    subprocess.run(["git", "clone", "--quiet", documents.ROOT, folder], check=True)
    environment = documents.finding(folder / ".venv" / "bin")
    environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    # Its own session: make, the installation and the broker end together.
    with subprocess.Popen(
        ["make", "serve", "LISTEN=127.0.0.1:0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as serving:
        try:
            assert serving.stdout is not None
            lines = []
            for line in serving.stdout:
                lines.append(line)
                if found := re.search(r" ready on (\S+) after", line):
                    break
            else:
                raise AssertionError("".join(lines))
            yield Clone(folder, found[1], environment)
        finally:
            os.killpg(serving.pid, signal.SIGTERM)


def test_the_first_messages_of_the_readme_are_seen_in_the_console(clone: Clone) -> None:
    ran = []
    for command, shown in documents.steps("README.md"):
        if command.startswith(FIRST):
            printed = documents.run(command, clone.bootstrap, clone.folder, clone.environment)
            assert documents.unlike(shown, printed) is None, printed
            ran.append(printed)
    assert len(ran) == len(FIRST)
    assert {"iron", "nickel"} <= {*ran[2].split()}
    magnetar = clone.folder / ".venv" / "bin" / "magnetar"
    with subprocess.Popen(
        [magnetar, "console", "--bootstrap", clone.bootstrap, "--listen", "127.0.0.1:0"],
        cwd=clone.folder,
        env=clone.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as console:
        try:
            assert console.stderr is not None
            found = re.search(r"console ready on (http://\S+?)/?\s", console.stderr.readline())
            assert found is not None
            with urlopen(f"{found[1]}/topics/messages?name=metals", timeout=30) as page:
                text = page.read().decode()
            assert "iron" in text and "nickel" in text
        finally:
            console.terminate()
    assert (clone.folder / "data").is_dir()


def test_make_demo_counts_every_word_once_and_draws_its_picture(clone: Clone) -> None:
    done = subprocess.run(
        ["make", "demo", "PICTURE=demo.svg"],
        cwd=clone.folder,
        env=clone.environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EXACTLY ONCE: every word has its true count" in done.stdout
    # Rich draws every space as one that does not break.
    picture = (clone.folder / "demo.svg").read_text().replace("&#160;", " ")
    assert "make demo" in picture and "EXACTLY ONCE" in picture
