"""The images and their containers with a real engine: run by tools/packages/containers.py alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

from magnetar.client import Client
from magnetar.client.topics import list_topics
from magnetar.testing.containers import (
    ApacheKafkaContainer,
    BrokerContainer,
    MagnetarContainer,
)
from tools.packages.containers import BASE_IMAGE
from tools.reference_kafka import fetch

IMAGE = "magnetar:latest"
#: What Kafka's distribution has in bin and config, in short.
_SCRIPT = """\
#!/bin/sh
export PATH={java}/bin:$PATH
exec java -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \\
    -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.properties \\
    -cp '/opt/kafka/libs/*' {main} "$@"
"""
_LOGGING = """\
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
"""


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def serves(container: BrokerContainer) -> None:
    """Check that clients outside of the container write and read."""
    with container.with_env("KAFKA_NUM_PARTITIONS", "3") as kafka:
        address = kafka.get_bootstrap_server()
        producer = Producer({"bootstrap.servers": address})
        producer.produce("orders", b"a dozen magnets")
        assert producer.flush(30) == 0
        with Client(address) as client:
            (topic,) = list_topics(client, ["orders"])
        assert len(topic.partitions) == 3
        settings = {"group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": address, **settings})
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None and message.value() == b"a dozen magnets"
        consumer.close()


def test_a_drop_in_for_kafkas_container() -> None:
    serves(MagnetarContainer().with_kraft())


def with_kafka_of_this_machine(folder: Path) -> ApacheKafkaContainer:
    """Return a container that has Kafka's jars and the Java of this machine where images have them.

    It stands in for an image, which no registry gives here.
    """
    java = shutil.which("java")
    assert java is not None
    home = Path(java).resolve().parents[1]
    scripts = {
        "bin/kafka-storage.sh": "kafka.tools.StorageTool",
        "bin/kafka-server-start.sh": "kafka.Kafka",
    }
    files = {name: _SCRIPT.format(java=home, main=main) for name, main in scripts.items()}
    for name, text in {**files, "config/log4j2.properties": _LOGGING}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    container = ApacheKafkaContainer(os.environ.get("BASE") or BASE_IMAGE)
    shared = [(folder / name, f"/opt/kafka/{name}") for name in ("bin", "config")]
    # Debian's Java has its configuration in /etc.
    places = [(home, home), *((each, each) for each in Path("/etc").glob("java-*-openjdk"))]
    for outside, inside in (*shared, (fetch(), "/opt/kafka/libs"), *places):
        container.with_volume_mapping(str(outside), str(inside), "ro")
    return container


def test_apache_kafka_has_the_same_methods(tmp_path: Path) -> None:
    is_image_given = bool(os.environ.get("KAFKA_IMAGE"))
    container = ApacheKafkaContainer() if is_image_given else with_kafka_of_this_machine(tmp_path)
    serves(container)


def test_the_image_is_healthy_unprivileged_and_stops_cleanly() -> None:
    hardened = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    name = docker("run", "-d", *hardened, IMAGE)
    try:
        deadline = time.monotonic() + 60
        while docker("inspect", "--format", "{{.State.Health.Status}}", name) != "healthy":
            assert time.monotonic() < deadline, docker("logs", name)
            time.sleep(0.2)  # The engine looks at the health by itself.
        assert docker("exec", name, "id", "-u") == "10001"
        (node,) = json.loads(docker("exec", name, "magnetar", "cluster", "--json"))
        assert node["controller"]
        docker("stop", "-t", "30", name)
        state = json.loads(docker("inspect", "--format", "{{json .State}}", name))
        assert state["ExitCode"] == 0
    finally:
        docker("rm", "-f", "-v", name)
