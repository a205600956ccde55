"""Brokers in containers, for tests: magnetar and Apache Kafka, used like KafkaContainer.

    from magnetar.testing.containers import MagnetarContainer

    with MagnetarContainer() as kafka:
        run(kafka.get_bootstrap_server())

You need `magnetar[containers]`, a container engine and an image. tools/packages/Dockerfile builds
magnetar's image. Where there is no engine, `magnetar.testing.start_broker` starts a broker without
a container, which is faster too. The methods have the names of testcontainers-python's
KafkaContainer. `ApacheKafkaContainer` runs Apache Kafka with the same methods, so that a test can
compare the two.

Clients outside the container connect to a port that the engine chooses, and that is known only when
the container runs. So the container first waits for its settings, as KafkaContainer does, and
serves once they are there. Other containers of the network connect to port 9092 of its alias, or of
its hostname if it has no alias.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Mapping
from typing import Any, Self

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{__name__} needs {missing.name}: pip install 'magnetar[containers]'", name=missing.name
    ) from None

#: Files in the container: the settings, and an empty file that is written after them.
_SETTINGS, _WHOLE = "/server.properties", "/settings.whole"
_WAIT = f"while [ ! -f {_WHOLE} ]; do sleep 0.02; done"
_PREFIX = "KAFKA_"
_INSIDE, _CONTROLLER = 9092, 9094
#: The directories of Kafka's scripts and of the data in the official image.
_BIN, _KAFKA_DATA = "/opt/kafka/bin", "/var/lib/kafka/data"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


class BrokerContainer(DockerContainer):
    """A broker in a container of its own, with the methods of KafkaContainer."""

    def __init__(
        self,
        image: str,
        serve: str,
        ready: str,
        settings: Mapping[str, str],
        *,
        port: int,
        listener_name: str,
        **kwargs: Any,
    ) -> None:
        """`serve` is the command that the container's shell runs once the settings are there.

        `ready` is a pattern for the log line which says that clients can connect. `port` is the
        container's port for clients outside; the engine gives it a port of the host. `kwargs` go to
        DockerContainer.
        """
        super().__init__(image, entrypoint=["sh", "-c", f"{_WAIT}; {serve}"], **kwargs)
        self.port = port
        self.listener_name = listener_name
        self._ready = re.compile(rf".*{ready}.*")
        self._settings = dict(settings)
        self.with_exposed_ports(port)

    def with_setting(self, name: str, value: str) -> Self:
        """Set a setting of the broker. `name` is Kafka's name of it."""
        self._settings[name] = value
        return self

    def with_kraft(self) -> Self:
        """Change nothing: the broker never uses ZooKeeper."""
        return self

    def get_bootstrap_server(self) -> str:
        """Return the address for clients outside."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def start(self, timeout: int = 30) -> Self:
        """Start the container, and return when clients can connect. `timeout` is in seconds."""
        super().start()
        self._give({_SETTINGS: self._properties(), _WHOLE: ""})
        wait = LogMessageWaitStrategy(self._ready)
        wait.with_startup_timeout(timeout)
        wait.wait_until_ready(self)
        return self

    def _properties(self) -> str:
        """Return the settings, with the addresses that the broker advertises."""
        inside = next(iter(self._network_aliases or ()), self.get_wrapped_container().id[:12])
        own = self._listeners()
        own["advertised.listeners"] = (
            f"{self.listener_name}://{self.get_bootstrap_server()},BROKER://{inside}:{_INSIDE}"
        )
        given = {**own, **self._settings, **settings_of(self.env)}
        return "".join(f"{name}={value}\n" for name, value in given.items())

    def _listeners(self) -> dict[str, str]:
        name = self.listener_name
        return {
            "listeners": f"{name}://0.0.0.0:{self.port},BROKER://0.0.0.0:{_INSIDE}",
            "listener.security.protocol.map": f"{name}:PLAINTEXT,BROKER:PLAINTEXT",
        }

    def _give(self, files: Mapping[str, str]) -> None:
        """Write files to the container, in this order."""
        with io.BytesIO() as buffer:
            with tarfile.TarFile(fileobj=buffer, mode="w") as archive:
                for name, text in files.items():
                    entry = tarfile.TarInfo(name.removeprefix("/"))
                    entry.size = len(text.encode())
                    archive.addfile(entry, io.BytesIO(text.encode()))
            self.get_wrapped_container().put_archive("/", buffer.getvalue())


class MagnetarContainer(BrokerContainer):
    """A magnetar broker. tools/packages/Dockerfile builds the default image."""

    def __init__(
        self,
        image: str = "magnetar:latest",
        port: int = 9093,
        listener_name: str = "PLAINTEXT",
        **kwargs: Any,
    ) -> None:
        """`port` is the one inside the container that clients outside are led to."""
        super().__init__(
            image,
            f"exec magnetar serve --config {_SETTINGS}",
            r"\bready on\b",
            {"log.dirs": "/var/lib/magnetar"},
            port=port,
            listener_name=listener_name,
            **kwargs,
        )


class ApacheKafkaContainer(BrokerContainer):
    """Apache Kafka: one node in KRaft mode, from Kafka's official image.

    The image is `apache/kafka:4.3.1`, unless `image` or the variable `KAFKA_IMAGE` names another.
    That image must have Kafka in /opt/kafka.
    """

    def __init__(
        self,
        image: str | None = None,
        port: int = 9093,
        listener_name: str = "PLAINTEXT",
        **kwargs: Any,
    ) -> None:
        """`port` is the one inside the container that clients outside are led to."""
        format_directory = (
            f"{_BIN}/kafka-storage.sh format --ignore-formatted"
            f" --cluster-id {_CLUSTER_ID} --config {_SETTINGS}"
        )
        one_replica = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        super().__init__(
            image or os.environ.get("KAFKA_IMAGE") or "apache/kafka:4.3.1",
            f"{format_directory} && exec {_BIN}/kafka-server-start.sh {_SETTINGS}",
            r"Kafka Server started",
            {
                "log.dirs": _KAFKA_DATA,
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@localhost:{_CONTROLLER}",
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "BROKER",
                "transaction.state.log.min.isr": "1",
                "share.coordinator.state.topic.min.isr": "1",
                "group.initial.rebalance.delay.ms": "0",
                **{f"{topic}.replication.factor": "1" for topic in one_replica},
            },
            port=port,
            listener_name=listener_name,
            **kwargs,
        )

    def start(self, timeout: int = 60) -> Self:
        """Start the container, and return when clients can connect. `timeout` is in seconds."""
        return super().start(timeout)

    def _listeners(self) -> dict[str, str]:
        own = super()._listeners()
        own["listeners"] += f",CONTROLLER://localhost:{_CONTROLLER}"
        own["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        return own


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that environment variables give, named as for images of Kafka.

    KAFKA_NUM_PARTITIONS gives num.partitions: `_` stands for a dot, `__` for an underscore, `___`
    for a minus sign.
    """
    found = {}
    for name, value in environment.items():
        # Variables that end with _OPTS are for the scripts that start the JVM.
        if name.startswith(_PREFIX) and not name.endswith("_OPTS"):
            words = name.removeprefix(_PREFIX).lower()
            words = words.replace("___", "-").replace("__", "\0").replace("_", ".")
            found[words.replace("\0", "_")] = str(value)
    return found
