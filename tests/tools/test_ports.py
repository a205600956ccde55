"""A port that a test is given is its own."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tools import ports

#: Takes a port, prints it, and keeps it until its input ends.
OTHER_PROCESS = """
import sys
from tools.ports import free_port
print(free_port(), flush=True)
sys.stdin.read()
"""


def test_what_another_process_took_is_free_again_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        monkeypatch.setattr(ports, "_PORTS", range(taken - 10, taken + 10))
        assert taken not in [ports.free_port() for _ in range(10)]
        other.communicate()
    monkeypatch.setattr(ports, "_PORTS", range(taken, taken + 1))
    assert ports.free_port() == taken


def test_a_port_on_which_a_server_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports.free_port()))
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "_PORTS", range(port - 10, port + 10))
        monkeypatch.setattr(ports, "_given", set())
        assert port not in [ports.free_port() for _ in range(10)]
