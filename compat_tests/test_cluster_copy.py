"""From one machine to a cluster and back: what clients read, commit and end is what it was."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.brokers import MAGNETAR, SETTINGS
from compat_tests.clusters import Node
from compat_tests.confluent_client import consumer, producer
from compat_tests.offsets import committed_offset
from compat_tests.waiting import eventually
from tools.postgresql import PostgresServer, enterable_directory

pytestmark = [pytest.mark.magnetar_only(reason="what Kafka keeps comes over by `magnetar import`")]

TOPIC, GROUP = "orders", "readers"
#: More than two segments of a cluster have in one partition.
RECORDS, RECORD_BYTES = 200, 100_000


class Alone(Node):
    """One broker with a disk, at the address of the node that comes after it."""

    def __init__(self, node: Node, directory: Path) -> None:
        super().__init__(1, "", directory, SETTINGS)
        self.port = node.port
        self._command = [
            *(str(MAGNETAR), "serve", "--listen", node.address),
            *("--data-dir", str(self.data)),
            *(f"--set={name}={value}" for name, value in SETTINGS.items()),
        ]


@contextmanager
def serving(node: Node) -> Iterator[None]:
    """Serve until the end of the block, and stop cleanly."""
    said = node.output.count(" ready on ")
    node.spawn()
    try:
        node.await_ready(said + 1)
        yield
        assert node.stop() == 0
    finally:
        node.kill_host()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(MAGNETAR), *arguments], capture_output=True, text=True, check=False)


def read(node: Node, count: int) -> list[tuple[int, bytes]]:
    """Return offsets and values of the committed records of the topic's first partition."""
    reader = consumer(node.address, "copy-reader", isolation_level="read_committed")
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes]] = []

    def has_all() -> bool:
        messages = reader.consume(1000, 0.2)
        found.extend((one.offset() or 0, one.value() or b"") for one in messages if not one.error())
        return len(found) >= count

    eventually(has_all)
    reader.close()
    return found


def committed(node: Node) -> int:
    return committed_offset(node.address, GROUP, TOPIC)


@pytest.fixture
def directory() -> Iterator[Path]:
    with enterable_directory("magnetar-copy-") as made:
        yield made


def test_everything_comes_over_and_goes_back(directory: Path) -> None:
    server = PostgresServer(directory / "postgresql")
    server.start()
    try:
        copy_there_and_back(server.url, directory)
    finally:
        server.stop()


def move_to_another_cluster(url: str, exported: Path, records: list[tuple[int, bytes]]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
    url = url.rpartition("/")[0] + "/other"
    other = Node(1, url, exported.parent / "other", SETTINGS)
    moved = run("cluster", "import", str(exported), "--storage", url)
    assert moved.returncode == 0, "no broker need be started on an export first"
    with serving(other):
        assert read(other, len(records)) == records
        assert committed(other) == 17


def copy_there_and_back(url: str, directory: Path) -> None:
    node = Node(1, url, directory / "node", SETTINGS)
    alone = Alone(node, directory / "alone")
    chance = random.Random(5)
    ongoing = producer(node.address, transactional_id="ongoing")
    with serving(alone):
        admin = AdminClient({"bootstrap.servers": node.address})
        config = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)])[TOPIC].result(30)
        aborting = producer(node.address, transactional_id="aborting")
        aborting.init_transactions(30)
        writer = producer(node.address)
        for number in range(RECORDS):
            # An aborted record in each of the segments to come.
            if number % 40 == 0:
                aborting.begin_transaction()
                aborting.produce(TOPIC, b"aborted", partition=0)
                aborting.flush()
                aborting.abort_transaction(30)
            writer.produce(TOPIC, chance.randbytes(RECORD_BYTES), partition=0)
            writer.flush()
        reader = consumer(node.address, GROUP)
        reader.commit(offsets=[TopicPartition(TOPIC, 0, 17)], asynchronous=False)
        reader.close()
        before = read(alone, RECORDS)
        ongoing.init_transactions(30)
        ongoing.begin_transaction()
        ongoing.produce(TOPIC, b"ongoing", partition=0)
        ongoing.flush()
    there = ("cluster", "import", str(alone.data), "--storage", url)
    imported = run(*there)
    assert imported.returncode == 0 and "partitions with data" in imported.stdout, imported
    again = run(*there)
    assert again.returncode == 1 and "not empty" in again.stderr
    with serving(node):
        assert read(node, RECORDS) == before, "and the open transaction's record is not shown"
        assert committed(node) == 17
        live = run("cluster", "export", str(directory / "no"), "--storage", url)
        assert live.returncode == 1 and "nodes live: 1" in live.stderr
        ongoing.commit_transaction(60)
        after = read(node, RECORDS + 1)
        assert after[:RECORDS] == before and after[RECORDS][1] == b"ongoing"
    back = Alone(node, directory / "back")
    back.data.parent.mkdir()
    exported = run("cluster", "export", str(back.data), "--storage", url)
    assert exported.returncode == 0, exported
    move_to_another_cluster(url, back.data, after)
    with serving(back):
        assert read(back, RECORDS + 1) == after
        assert committed(back) == 17
        ongoing.begin_transaction()
        ongoing.produce(TOPIC, b"once more", partition=0)
        ongoing.commit_transaction(60)
        assert read(back, RECORDS + 2)[-1][1] == b"once more"
