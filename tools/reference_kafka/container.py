"""The reference broker from the official image, where a Docker engine answers and testcontainers
is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from tools.reference_kafka.jars import VERSION

IMAGE = f"apache/kafka:{VERSION}"


def docker_answers() -> bool:
    """Return whether containers can be started here: a client, an engine behind it, and
    testcontainers.
    """
    docker = shutil.which("docker")
    if docker is None or importlib.util.find_spec("testcontainers") is None:
        return False
    ping = [docker, "info", "--format", "{{.ServerVersion}}"]
    try:
        return subprocess.run(ping, capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class ContainerKafka:
    """The image's single node on the host's network; the image takes settings from the
    environment.
    """

    def __init__(self, port: int, controller_port: int, settings: Mapping[str, str]) -> None:
        core: Any = importlib.import_module("testcontainers.core.container")
        self.port = port
        container = core.DockerContainer(IMAGE).with_kwargs(network_mode="host")
        for name, value in {**_listeners(port, controller_port), **settings}.items():
            container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
        self._container = container

    def start(self) -> None:
        """Start the container; the caller waits for the port."""
        self._container.start()

    def stop(self) -> None:
        """Remove the container and everything in it."""
        self._container.stop()


def _listeners(port: int, controller_port: int) -> dict[str, str]:
    host = "127.0.0.1"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{host}:{controller_port}",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
