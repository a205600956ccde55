"""magnetar in a container, in place of testcontainers-python's KafkaContainer.

    from magnetar.testing.containers import MagnetarContainer

    with MagnetarContainer() as kafka:
        run(kafka.get_bootstrap_server())

Needs `magnetar[containers]`, a container engine, and an image, which tools/packages/Dockerfile
builds. Without an engine `magnetar.testing.start_broker` does the same, and faster.

Clients outside use the port that the engine chose, which is known once the container runs. So the
container waits for its settings, as KafkaContainer's does, and begins to serve when they come.
Containers of the same network use port 9092 of its alias, or of its hostname.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from typing import Any, Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

#: Inside the container: the settings, and what says that they are whole.
_SETTINGS, _WHOLE = "magnetar.properties", "magnetar.go"
_WAIT = f"while [ ! -f /{_WHOLE} ]; do sleep 0.02; done"
_SERVE = f"exec magnetar serve --config /{_SETTINGS}"
_PREFIX = "KAFKA_"
_READY = re.compile(r".*\bready on\b.*")
_INSIDE = 9092


class MagnetarContainer(DockerContainer):
    """A broker in a container of its own, with the methods of KafkaContainer."""

    def __init__(
        self,
        image: str = "magnetar:latest",
        port: int = 9093,
        listener_name: str = "PLAINTEXT",
        **kwargs: Any,
    ) -> None:
        """`port` is the one inside the container that clients outside are led to.

        `kwargs` are those of DockerContainer.
        """
        super().__init__(image, entrypoint=["sh", "-c", f"{_WAIT}; {_SERVE}"], **kwargs)
        self.port = port
        self.listener_name = listener_name
        self._settings = {"log.dirs": "/var/lib/magnetar"}
        self.with_exposed_ports(port)

    def with_setting(self, name: str, value: str) -> Self:
        """Set a setting of the broker, by Kafka's name."""
        self._settings[name] = value
        return self

    def with_kraft(self) -> Self:
        """Change nothing: magnetar needs neither ZooKeeper nor KRaft."""
        return self

    def get_bootstrap_server(self) -> str:
        """Return the address for clients outside."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def start(self, timeout: int = 30) -> Self:
        """Return when clients can connect."""
        super().start()
        self._give({_SETTINGS: self._properties(), _WHOLE: ""})
        wait = LogMessageWaitStrategy(_READY)
        wait.with_startup_timeout(timeout)
        wait.wait_until_ready(self)
        return self

    def _properties(self) -> str:
        """Return the settings, with the addresses that clients are told."""
        inside = next(iter(self._network_aliases or ()), self.get_wrapped_container().id[:12])
        own = {
            "listeners": f"{self.listener_name}://0.0.0.0:{self.port},BROKER://0.0.0.0:{_INSIDE}",
            "advertised.listeners": (
                f"{self.listener_name}://{self.get_bootstrap_server()},BROKER://{inside}:{_INSIDE}"
            ),
            "listener.security.protocol.map": f"{self.listener_name}:PLAINTEXT,BROKER:PLAINTEXT",
        }
        given = {**own, **self._settings, **settings_of(self.env)}
        return "".join(f"{name}={value}\n" for name, value in given.items())

    def _give(self, files: Mapping[str, str]) -> None:
        """Write files to the root of the container, in this order."""
        with io.BytesIO() as buffer:
            with tarfile.TarFile(fileobj=buffer, mode="w") as archive:
                for name, text in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(text.encode())
                    archive.addfile(entry, io.BytesIO(text.encode()))
            self.get_wrapped_container().put_archive("/", buffer.getvalue())


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that images of Kafka take from variables: KAFKA_NUM_PARTITIONS.

    `___` stands for a minus sign, `__` for an underscore, `_` for a dot.
    """
    found = {}
    for name, value in environment.items():
        if name.startswith(_PREFIX):
            words = name.removeprefix(_PREFIX).lower()
            words = words.replace("___", "-").replace("__", "\0").replace("_", ".")
            found[words.replace("\0", "_")] = str(value)
    return found
