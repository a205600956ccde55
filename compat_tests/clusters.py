"""Nodes over PostgreSQL, each with a supervisor of its own, as on several hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from compat_tests.brokers import MAGNETAR, SETTINGS, START_TIMEOUT_S, STOP_TIMEOUT_S
from tools.ports import free_port
from tools.postgresql import PostgresServer


class Node:
    """One `magnetar serve --storage`."""

    def __init__(
        self, node_id: int, url: str, directory: Path, settings: Mapping[str, str]
    ) -> None:
        self.node_id = node_id
        self.port = free_port()
        self._directory = directory
        self.data = directory / "data"
        self._command = [
            *(str(MAGNETAR), "serve", "--storage", url, "--node-id", str(node_id)),
            *("--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.data)),
            *(f"--set={name}={value}" for name, value in settings.items()),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its supervisor runs."""
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """Return its supervisor, and the serving process that this has started, if it runs now."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [pid, *map(int, children.split())]

    def pid(self) -> int:
        """Return the serving process."""
        _, serving = self.pids()
        return serving

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """What it has printed since its first start."""
        path = self._directory / "output"
        return path.read_text() if path.exists() else ""

    def spawn(self) -> None:
        """Start it without waiting for anything."""
        self._directory.mkdir(exist_ok=True)
        with (self._directory / "output").open("ab") as output:
            # A session of its own: what ends the host ends all its processes.
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, start_new_session=True
            )

    def await_ready(self, count: int = 1) -> None:
        """Return when it has said so `count` times since its first start."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.output.count(" ready on ") < count:
            assert self._process is not None and self._process.poll() is None, self.output
            assert time.monotonic() < deadline, f"node {self.node_id} is not ready: {self.output}"
            time.sleep(0.02)

    def wait(self) -> int:
        """Return the exit code of a node that ends by itself."""
        assert self._process is not None
        return self._process.wait(START_TIMEOUT_S)

    def kill_process(self) -> None:
        """Kill the serving process alone, as a crash does; its supervisor starts it again."""
        os.kill(self.pid(), signal.SIGKILL)

    def kill_host(self) -> None:
        """Kill it with its supervisor: nothing starts it again."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """Stop it cleanly; return the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process = None
        return code


class Cluster:
    """Nodes over one PostgreSQL server."""

    def __init__(
        self,
        server: PostgresServer,
        directory: Path,
        urls: Mapping[int, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`urls`: the ids of the nodes, and how each reaches the database. None: nodes 1 to 3, by
        the server's own URL."""
        self.settings = {**SETTINGS, **(settings or {})}
        self.server = server
        self.url = server.url
        self.nodes = {
            node_id: Node(node_id, url, directory / str(node_id), self.settings)
            for node_id, url in (urls or dict.fromkeys((1, 2, 3), server.url)).items()
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        """Return when all nodes serve."""
        for node in self.nodes.values():
            node.spawn()
        for node in self.nodes.values():
            node.await_ready()

    def end(self) -> None:
        """Kill whatever runs."""
        for node in self.nodes.values():
            node.kill_host()


@contextmanager
def running_cluster(
    directory: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Serve by three nodes; `directory` must be one that every user may enter."""
    with ExitStack() as stack:
        server = PostgresServer(directory / "postgresql")
        server.start()
        stack.callback(server.stop, signal.SIGQUIT)
        cluster = Cluster(server, directory, settings=settings)
        stack.callback(cluster.end)
        cluster.start()
        yield cluster
