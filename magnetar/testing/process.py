"""A `magnetar serve` process: start it, stop it, kill it, start it again.

Owns the process, and the data directory unless the caller names one: a named one stays.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

#: The line's form is a promise of `magnetar serve`: this package imports nothing of it.
_READY = re.compile(r"ready on ([^ ,]+):(\d+)")
STOP_TIMEOUT_SECONDS = 20.0


class NotReady(Exception):
    """The broker ended instead of serving; the message has its output."""


class BrokerProcess:
    """One `magnetar serve`. A context manager: the end of its block stops the broker cleanly."""

    def __init__(
        self,
        data_dir: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`settings` have Kafka's names. Port 0 takes a free port, which restarts keep.

        Without `data_dir` the data is in a temporary directory, which the end of the block deletes.
        """
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="magnetar-")
            data_dir = self._temporary.name
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None
        self._log = ""

    @property
    def bootstrap_servers(self) -> str:
        """The setting `bootstrap.servers` of clients."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._running().pid

    @property
    def log(self) -> str:
        """The broker's standard error since its last start."""
        if self._stderr is not None:
            self._stderr.seek(0)
            self._log = self._stderr.read()
        return self._log

    def start(self) -> None:
        """Return when clients can connect. Raises NotReady."""
        assert self._process is None, "it is running"
        # The interpreter of the tests, so that it is the magnetar installed beside them.
        command = [sys.executable, "-m", "magnetar", "serve"]
        command += ["--listen", f"{self.host}:{self.port}", "--data-dir", str(self.data_dir)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        # A file, not a pipe: a pipe that is not read would stop the broker once it is full.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # kept open
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        assert self._process.stdout is not None
        # Blocks until the broker is ready or has ended: there is no interval to poll at, and no
        # timeout to tune.
        line = self._process.stdout.readline()
        found = _READY.search(line)
        if found is None:
            code = self._process.wait(STOP_TIMEOUT_SECONDS)
            self._ended()
            raise NotReady(f"exit code {code}: {line}{self.log}")
        # Kept for restarts: clients that reconnect find the broker where it was.
        self.port = int(found[2])

    def stop(self) -> int:
        """Stop the broker cleanly and return its exit code."""
        process = self._running()
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            # A stop that hangs fails the test through its exit code, and leaves no process behind.
            process.kill()
            return process.wait()
        finally:
            self._ended()

    def wait(self) -> int:
        """Return the exit code of a broker that ends by itself."""
        code = self._running().wait(STOP_TIMEOUT_SECONDS)
        self._ended()
        return code

    def kill(self) -> None:
        """End the broker as a crash would, with SIGKILL."""
        process = self._running()
        process.kill()
        process.wait()
        self._ended()

    def __enter__(self) -> BrokerProcess:
        try:
            self.start()
        except NotReady:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
        self._clean_up()

    def _clean_up(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it is not running"
        return self._process

    def _ended(self) -> None:
        """Keep the output, and close everything."""
        assert self._process is not None and self._process.stdout is not None
        assert self._stderr is not None
        self._log = self.log
        self._stderr.close()
        self._stderr = None
        self._process.stdout.close()
        self._process = None


def start_broker(
    data_dir: Path | str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    port: int = 0,
) -> BrokerProcess:
    """Return a broker for a `with` statement, which starts and stops it."""
    return BrokerProcess(data_dir, settings, port=port)
