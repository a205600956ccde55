"""A cluster with a bucket: older batches move there, and readers see no difference."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from moto.server import ThreadedMotoServer

from compat_tests.brokers import SETTINGS
from compat_tests.buckets import bucket_environment
from compat_tests.clusters import Node
from compat_tests.confluent_client import consumer, producer
from compat_tests.waiting import eventually
from tools.postgresql import PostgresServer, enterable_directory

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

TOPIC = "bulk"
RECORD_BYTES = 64 * 1024
RECORDS = 400
BUCKET = "s3://test/cluster"
#: A node asks a bucket that was away again after a minute at most.
PATIENCE_S = 180.0


class S3:
    """A server that speaks S3, which can go away and come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, self._port = self._server.get_host_and_port()
        for name, value in bucket_environment(f"http://{host}:{self._port}").items():
            monkeypatch.setenv(name, value)
        self._client = boto3.client("s3", region_name="us-east-1")
        self._client.create_bucket(Bucket="test")

    def stop(self) -> None:
        """Refuse all connections from here on. What it has stays."""
        self._server.stop()

    def start(self) -> None:
        """Answer again."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def sizes(self) -> list[int]:
        """Return the sizes of all objects."""
        listed = self._client.list_objects_v2(Bucket="test").get("Contents", [])
        return [each["Size"] for each in listed]


@pytest.fixture
def s3() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        server = S3(monkeypatch)
        yield server
        server.stop()


@pytest.fixture
def directory() -> Iterator[Path]:
    with enterable_directory("magnetar-objects-") as made:
        yield made


@pytest.fixture
def database(directory: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(directory / "postgresql")
    server.start()
    yield server
    server.stop()


def produced(bootstrap: str, seed: int) -> str:
    """Produce random records that no codec makes smaller; return their digest."""
    randomness, digest = random.Random(seed), hashlib.sha256()
    # Idempotent, so that what is refused for a while and sent again keeps its order.
    sender = producer(bootstrap, enable_idempotence=True)
    for _ in range(RECORDS):
        value = randomness.randbytes(RECORD_BYTES)
        digest.update(value)
        sender.produce(TOPIC, value, partition=0)
        sender.poll(0)
    assert sender.flush(PATIENCE_S) == 0
    return digest.hexdigest()


def produced_twice(bootstrap: str) -> tuple[str, str]:
    """Produce as `produced`, with a pause: a node knows what waits as it was a second ago."""
    third = produced(bootstrap, 3)
    time.sleep(1.5)
    return third, produced(bootstrap, 4)


def digest_of(bootstrap: str, first: int) -> str:
    """Return the digest of the records from the offset `first` on."""
    reader = consumer(bootstrap, f"reader-{time.monotonic_ns()}")
    reader.assign([TopicPartition(TOPIC, 0, first)])
    digest = hashlib.sha256()
    for _ in range(RECORDS):
        message = reader.poll(30)
        assert message is not None and message.error() is None
        digest.update(message.value() or b"")
    reader.close()
    return digest.hexdigest()


def row_bytes(url: str) -> int:
    """Return the bytes of batches in the database."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT sum(octet_length(data)) FROM magnetar.chunks")
        row = found.fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def test_older_batches_move_to_the_bucket_and_are_read_from_there(
    s3: S3, database: PostgresServer, directory: Path
) -> None:
    settings = {**SETTINGS, "cluster.objects": BUCKET}
    # Beside 16 MiB that do not count: what is produced once without the bucket, and not twice.
    settings["cluster.objects.backlog.max.bytes"] = str(20 << 20)
    node = Node(1, database.url, directory / "1", settings)
    other = Node(1, database.url, directory / "2", {**SETTINGS, "cluster.objects": "s3://other"})
    try:
        node.spawn()
        node.await_ready()
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)

        first = produced(node.address, 1)
        written = RECORDS * RECORD_BYTES
        eventually(lambda: sum(s3.sizes()) > written - (9 << 20))
        eventually(lambda: row_bytes(database.url) < 10 << 20)
        assert digest_of(node.address, 0) == first

        # Without the bucket everything goes on; what is new stays in the database.
        s3.stop()
        second = produced(node.address, 2)
        eventually(lambda: "cannot be moved to the bucket" in node.output)
        assert row_bytes(database.url) > written - (9 << 20)
        assert digest_of(node.address, RECORDS) == second

        # Up to a bound: then producers wait, and groups go on.
        with ThreadPoolExecutor(1) as beside:
            more = beside.submit(produced_twice, node.address)
            refused = "clients' records are refused until it takes them"
            eventually(lambda: refused in node.output, PATIENCE_S)
            reader = consumer(node.address, "goes-on")
            reader.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
            reader.close()
            assert not more.done()
            s3.start()
            third, fourth = more.result(PATIENCE_S)
        assert "clients' records are taken again" in node.output
        assert digest_of(node.address, 2 * RECORDS) == third
        assert digest_of(node.address, 3 * RECORDS) == fourth
        eventually(lambda: row_bytes(database.url) < 10 << 20, PATIENCE_S)
        eventually(lambda: "batches move to the bucket again" in node.output, PATIENCE_S)

        # Nothing is in memory after a death, and the database remembers the bucket.
        node.kill_host()
        other.spawn()
        eventually(lambda: f"keeps its objects at {BUCKET}" in other.output)
        again = Node(1, database.url, directory / "3", SETTINGS)
        again.spawn()
        again.await_ready()
        try:
            assert digest_of(again.address, 0) == first
            assert digest_of(again.address, RECORDS) == second
        finally:
            again.kill_host()
    finally:
        node.kill_host()
        other.kill_host()
