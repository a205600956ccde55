"""The quick start of docs/cluster.md: three brokers, a killed one, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from compat_tests import documents
from compat_tests.brokers import MAGNETAR
from tools.ports import free_port
from tools.reference_kafka.process import answers

pytestmark = [pytest.mark.magnetar_only(reason="the document is magnetar's")]
PAGE = "docs/cluster.md"
COMMANDS_MAX = 5
END = "that was the last command"


def test_the_quick_start_does_what_it_says() -> None:
    (quick, *_) = documents.blocks(PAGE, "")
    commands = quick.splitlines()
    assert len(commands) <= COMMANDS_MAX
    # Of a fresh clone: here it is done already.
    assert commands[0].startswith("make install && ")
    script = "\n".join([commands[0].removeprefix("make install && "), *commands[1:], f"echo {END}"])
    base = next(
        port for port in iter(free_port, None) if not any(answers(port + n) for n in (1, 2, 3))
    )
    for shown, here in (("5432", free_port()), *((f"909{n}", base + n) for n in (1, 2, 3))):
        script = script.replace(shown, str(here))
    script = script.replace("909$n", f"$(({base}+$n))")
    # Where every user may enter: PostgreSQL never runs as root.
    with tempfile.TemporaryDirectory(prefix="magnetar-page-") as directory:
        Path(directory).chmod(0o755)
        paths = (MAGNETAR.parent, os.environ["PATH"])
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env={
                **os.environ,
                "PATH": os.pathsep.join(map(str, paths)),
                "PYTHONPATH": str(documents.ROOT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell:
            try:
                printed = _read_until_end(shell)
            finally:
                os.killpg(shell.pid, signal.SIGKILL)
    assert "1000" in printed, "\n".join(printed)


def _read_until_end(shell: subprocess.Popen[bytes]) -> list[str]:
    """Return what was printed until the last line of the script; the servers go on after it."""
    assert shell.stdout is not None
    printed: list[str] = []
    for line in shell.stdout:
        printed.append(line.decode().strip())
        if printed[-1] == END:
            break
    return printed
