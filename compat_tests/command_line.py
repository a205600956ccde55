"""The `magnetar` command, as tests run it against a broker of either kind."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from compat_tests.brokers import MAGNETAR, Broker
from compat_tests.client import TIMEOUT_S


def run(
    broker: Broker, *arguments: str, stdin: bytes = b"", exit_code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; another exit code than the expected one is an error."""
    ended = subprocess.run(
        [str(MAGNETAR), *arguments],
        input=stdin,
        capture_output=True,
        env=environment(broker),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == exit_code, (arguments, ended.stdout, ended.stderr)
    assert b"Traceback" not in ended.stderr
    return ended


def output(broker: Broker, *arguments: str, stdin: bytes = b"") -> bytes:
    """Return what a command prints."""
    return run(broker, *arguments, stdin=stdin).stdout


def printed(broker: Broker, *arguments: str, stdin: bytes = b"") -> Any:
    """Return the JSON that a command prints."""
    return json.loads(output(broker, *arguments, "--json", stdin=stdin))


def refusal(broker: Broker, *arguments: str, stdin: bytes = b"") -> str:
    """Return the one line with which a command fails."""
    said = run(broker, *arguments, stdin=stdin, exit_code=1).stderr.decode()
    assert said.startswith("magnetar: error: ") and said.count("\n") == 1, said
    return said


def environment(broker: Broker) -> dict[str, str]:
    return {**os.environ, "MAGNETAR_BOOTSTRAP": broker.bootstrap}
