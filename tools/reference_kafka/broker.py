"""One Apache Kafka node in KRaft mode (broker and controller in one process), on files below a
directory of its own.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.ports import free_port
from tools.reference_kafka.jars import ReferenceUnavailable, java_command
from tools.reference_kafka.process import answers, end

#: What kafka-server-start passes, so that measurements are of Kafka as people run it.
SERVER_OPTIONS = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
"""

#: Runs kafka-storage with the arguments; returns its status and what it said.
StorageTool = Callable[..., tuple[int, str]]


class ReferenceKafka:
    """A broker that can be started, killed and started again on the same port and files.

    `settings` are lines of server.properties by Kafka's names; they come after the defaults below,
    so they win.
    """

    def __init__(
        self,
        port: int,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        options: tuple[str, ...] = SERVER_OPTIONS,
        listeners: Mapping[str, int] | None = None,
        storage_tool: StorageTool | None = None,
        joins: ReferenceKafka | None = None,
    ) -> None:
        """`listeners`: the ports of listeners beside PLAINTEXT, by the name of their protocol.
        `storage_tool`: what formats the directory; None: a JVM that does nothing else.
        `joins`: the first node of its cluster, which is the controller too.
        """
        self._listeners = {"PLAINTEXT": port, **(listeners or {})}
        self.port = port
        self.directory = directory
        self.log_directory = directory / "log"
        self._joins = joins
        self._controller_port: int = free_port() if joins is None else joins._controller_port
        # A leading zero byte: an id that begins with `-` would be taken for an option.
        made = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self._cluster_id: str = made if joins is None else joins._cluster_id
        self._settings = dict(settings or {})
        self._options = options
        self._storage_tool = storage_tool or _run_storage_tool
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Format the directory if it is new, start the process, return when all ports answer: it
        opens its listeners one after another.
        """
        self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(answers(port) for port in self._listeners.values()):
            if self._process is None or self._process.poll() is not None:
                raise ReferenceUnavailable(f"Kafka ended while starting:\n{self.output()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ReferenceUnavailable(f"A port of Kafka stayed closed:\n{self.output()}")
            time.sleep(0.02)

    def spawn(self) -> None:
        """Start the process without waiting for anything."""
        properties = self._configure()
        command = java_command(
            "kafka.Kafka",
            str(properties),
            options=(
                *self._options,
                f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            ),
        )
        with (self.directory / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """End the process as a power button would, if it runs: SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the process to end and wait for it; kill it when it takes longer than a minute."""
        self._end(signal.SIGTERM)

    def wait(self) -> int:
        assert self._process is not None, "not started"
        return self._process.wait()

    def output(self) -> str:
        """Return the last lines the process wrote."""
        path = self.directory / "output.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end(process, number, _STOP_TIMEOUT_S)

    def _configure(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        properties = self.directory / "server.properties"
        lines = {**self._defaults(), **self._settings}
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        if not (self.log_directory / "meta.properties").exists():
            self._format(properties)
        return properties

    def _defaults(self) -> dict[str, str]:
        host = "127.0.0.1"
        addresses = ",".join(f"{name}://{host}:{port}" for name, port in self._listeners.items())
        controller = f",CONTROLLER://{host}:{self._controller_port}" if self._joins is None else ""
        protocols = ",".join(f"{name}:{name}" for name in self._listeners)
        return {
            "process.roles": "broker,controller" if self._joins is None else "broker",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{host}:{self._controller_port}",
            "listeners": f"{addresses}{controller}",
            "advertised.listeners": addresses,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.log_directory),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    def _format(self, properties: Path) -> None:
        arguments = ("format", "-t", self._cluster_id, "-c", str(properties))
        role = "--standalone" if self._joins is None else "--no-initial-controllers"
        status, said = self._storage_tool(*arguments, role)
        if status != 0:
            raise ReferenceUnavailable(f"kafka-storage format failed:\n{said[-2000:]}")


def _run_storage_tool(*arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        java_command("kafka.tools.StorageTool", *arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr
