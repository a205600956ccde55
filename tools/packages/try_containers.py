"""The image and MagnetarContainer with a real engine: run by tools/packages/containers.py alone."""

from __future__ import annotations

import json
import subprocess
import time

from confluent_kafka import Consumer, Producer

from magnetar.client import Client
from magnetar.client.topics import list_topics
from magnetar.testing.containers import MagnetarContainer

IMAGE = "magnetar:latest"


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_drop_in_for_kafkas_container() -> None:
    container = MagnetarContainer().with_kraft().with_env("KAFKA_NUM_PARTITIONS", "3")
    with container as kafka:
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
        message = consumer.poll(30)
        assert message is not None and message.value() == b"a dozen magnets"
        consumer.close()


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
