"""Processes that are there at once: forked from one that has imported everything, as Spark's are.

`python -m compat_tests.sink_crashes.nursery SOCKET` listens; each connection is a job: the name of
a function of `roles` and its arguments. It answers with its process id, then with the outcome.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple, Self

from compat_tests.client import TIMEOUT_S
from compat_tests.waiting import eventually


class Outcome(NamedTuple):
    """How a job ended."""

    kind: str
    """`ok`, `refused` (the sink raised its error) or `killed`."""
    value: Any = None


class Job:
    """A process at work."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._outcome: Outcome | None = None
        pid = connection.recv()
        assert isinstance(pid, int)
        self.pid = pid

    def wait(self, timeout_s: float = TIMEOUT_S * 4) -> Outcome:
        """Return how it ended."""
        if self._outcome is None:
            assert self.connection.poll(timeout_s), f"a process works for over {timeout_s} s"
            try:
                self._outcome = Outcome(*self.connection.recv())
            except (EOFError, ConnectionError):
                self._outcome = Outcome("killed")
            self.connection.close()
        assert self._outcome is not None
        return self._outcome

    @property
    def is_running(self) -> bool:
        return self._outcome is None

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self._outcome is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """Starts jobs. A context manager: at its end none is left."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nursery-")
        self._address = str(Path(self._directory.name) / "socket")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "compat_tests.sink_crashes.nursery", self._address]
        self._process = subprocess.Popen(command, start_new_session=True)
        eventually(self._is_listening)
        return self

    def _is_listening(self) -> bool:
        """Its socket has a name before it listens there."""
        try:
            Client(self._address, family="AF_UNIX").close()
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._directory.cleanup()

    def start(self, role: str, *arguments: Any) -> Job:
        """Start a function of `roles` in a process of its own."""
        connection = Client(self._address, family="AF_UNIX")
        connection.send((role, arguments))
        return Job(connection)


def serve(address: str) -> None:
    """Fork a process for each connection, until killed."""
    # Imported once, here, for all of them.
    from compat_tests.sink_crashes import roles

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with Listener(address, family="AF_UNIX", backlog=64) as listener:
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                _work(connection, roles)
                os._exit(0)
            connection.close()


def _work(connection: Connection, roles: Any) -> None:
    try:
        role, arguments = connection.recv()
    except EOFError:
        return  # `_is_listening` has connected.
    connection.send(os.getpid())
    try:
        outcome = ("ok", getattr(roles, role)(*arguments))
    except roles.SinkError as refusal:
        outcome = ("refused", f"{type(refusal).__name__}: {refusal}")
    with suppress(BrokenPipeError):
        connection.send(outcome)


if __name__ == "__main__":
    serve(sys.argv[1])
