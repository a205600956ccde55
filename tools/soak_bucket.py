"""A cluster whose batches lie in a bucket that fails: `python -m tools.soak_bucket`.

Three nodes over PostgreSQL and S3. Clients write `--megabytes` to each of four partitions, write
keys to a compacted topic, trim one topic, and delete another and make it again, for `--minutes` at
least. Meanwhile one request of the bucket in ten fails, before its effect or after it, and a host
dies every so often. Then all hosts die, and new ones take over. Every record that was acknowledged
is read back as it was. Every object that a row names is there; after two sweeps there is no other.
No node tells of an error.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.admin import create_topic
from compat_tests.brokers import SETTINGS
from compat_tests.buckets import bucket_environment
from compat_tests.clusters import Node
from compat_tests.confluent_client import consumer, producer
from compat_tests.faulty_bucket import BUCKET, FaultyBucket, faulty_bucket
from logstore.remote.bucket import Bucket
from logstore.remote.commit_store import LogKey, Span
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import PREFIX, Sweep
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.references import decode
from tools.postgresql import PostgresServer

PARTITIONS = 4
NODES = (1, 2, 3)
_URL = f"s3://{BUCKET}/cluster"
_RECORD_BYTES = 50_000
_FAULT_PROBABILITY = 0.1
_KILL_EVERY_S = 25.0
_PATIENCE_S = 300.0
#: A host that has died is back after some seconds.
_ASKED_EVERY_S = 1.0
#: A round of writing aside begins this long after the one before it, at least: the bucket has room
#: on this disk for what no sweep has found yet.
_ROUND_S = 60.0
#: Bytes of keys and of what is trimmed or deleted, in parts of those of a partition.
_ASIDE = 4


class Soak:
    """The cluster, and what its clients know."""

    def __init__(
        self, directory: Path, bucket: FaultyBucket, megabytes: int, minutes: float
    ) -> None:
        self._bucket = bucket
        self._records = megabytes * 1_000_000 // _RECORD_BYTES
        self.server = PostgresServer(directory / "postgresql")
        self._directory = directory
        self._nodes: dict[int, Node] = {}
        self._started: list[Node] = []
        self._sent: dict[tuple[str, int], list[bytes]] = {}
        self._until_s = time.monotonic() + minutes * 60
        #: The offset up to which the trimmed topic is gone.
        self._trimmed_to = 0
        self.largest_bytes = 0

    def start(self) -> None:
        """Return when all nodes serve."""
        self.server.start()
        self._start_nodes()

    def _start_nodes(self) -> None:
        settings = {**SETTINGS, "cluster.objects": _URL}
        for node_id in NODES:
            place = self._directory / f"{node_id}-{time.monotonic_ns()}"
            self._nodes[node_id] = Node(node_id, self.server.url, place, settings)
            self._nodes[node_id].spawn()
            self._started.append(self._nodes[node_id])
        for node in self._nodes.values():
            node.await_ready()

    def end(self) -> None:
        """Kill whatever runs."""
        for node in self._nodes.values():
            node.kill_host()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self._nodes.values())

    def write(self) -> None:
        """Write everything, while the bucket fails and hosts die."""
        create_topic(self.bootstrap, "kept", PARTITIONS)
        create_topic(self.bootstrap, "trimmed", 1)
        create_topic(self.bootstrap, "keys", 1, {"cleanup_policy": "compact"})
        self._bucket.probability = _FAULT_PROBABILITY
        with self._hosts_dying():
            for index in range(PARTITIONS):
                self._write("kept", index, self._records)
            rounds = 0
            while rounds == 0 or time.monotonic() < self._until_s:
                rounds += 1
                ends_s = time.monotonic() + _ROUND_S
                self._write_aside()
                # Else this disk is full before a sweep comes: `_ROUND_S`.
                time.sleep(max(min(ends_s, self._until_s) - time.monotonic(), 0))
        print(f"{rounds} rounds of compacting, trimming and deleting")

    def _write_aside(self) -> None:
        there, gone = KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.UNKNOWN_TOPIC_OR_PART
        _insist(lambda: create_topic(self.bootstrap, "deleted", 1), there)
        for topic in ("trimmed", "deleted", "keys"):
            self._write(topic, 0, self._records // _ASIDE)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._trim(admin)
        _insist(lambda: admin.delete_topics(["deleted"])["deleted"].result(_PATIENCE_S), gone)

    def _write(self, topic: str, partition: int, count: int) -> None:
        """Write records, and keep the digests of those that were acknowledged, in their order."""
        client = producer(
            self.bootstrap,
            enable_idempotence=True,
            compression_type="none",
            linger_ms=5,
            queue_buffering_max_kbytes=65_536,
            message_timeout_ms=int(_PATIENCE_S * 1000),
        )
        digests = self._sent.setdefault((topic, partition), [])
        randomness = random.Random(f"{topic}-{partition}-{len(digests)}")
        refused: list[str] = []

        def told(error: object, message: object) -> None:
            if error is not None:
                refused.append(str(error))

        for number in range(len(digests), len(digests) + count):
            value = randomness.randbytes(_RECORD_BYTES)
            digests.append(hashlib.sha256(value).digest())
            key = b"%d" % (number % 50) if topic == "keys" else None
            while True:
                try:
                    client.produce(topic, value, key, partition=partition, on_delivery=told)
                    break
                except BufferError:
                    client.poll(0.5)
            client.poll(0)
            if number % 200 == 0:
                self._sample()
        assert client.flush(_PATIENCE_S) == 0 and not refused, refused[:3]

    def _sample(self) -> None:
        with psycopg.connect(self.server.url) as connection:
            row = connection.execute(
                "SELECT pg_database_size(current_database())::bigint"
            ).fetchone()
        assert row is not None
        self.largest_bytes = max(self.largest_bytes, int(row[0]))

    def _trim(self, admin: AdminClient) -> None:
        half = len(self._sent["trimmed", 0]) // 2
        self._trimmed_to += half
        partition = TopicPartition("trimmed", 0, self._trimmed_to)
        _insist(lambda: admin.delete_records([partition])[partition].result(_PATIENCE_S))
        del self._sent["trimmed", 0][:half]

    @contextmanager
    def _hosts_dying(self) -> Iterator[None]:
        is_over = threading.Event()

        def kill() -> None:
            number = 0
            while not is_over.wait(_KILL_EVERY_S):
                node = self._nodes[NODES[number % len(NODES)]]
                number += 1
                node.kill_host()
                starts = node.output.count(" ready on ")
                node.spawn()
                node.await_ready(starts + 1)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def read_back(self) -> list[str]:
        """Let other hosts take everything over; return what is not as it was written."""
        self.end()
        self._start_nodes()
        return [fault for key, sent in self._sent.items() for fault in self._compare(*key, sent)]

    def _compare(self, topic: str, partition: int, sent: list[bytes]) -> Iterator[str]:
        if topic == "deleted":
            return
        reader = consumer(self.bootstrap, f"reader-{time.monotonic_ns()}")
        reader.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes] = []
        latest: dict[bytes, bytes] = {}
        end = reader.get_watermark_offsets(TopicPartition(topic, partition), _PATIENCE_S)[1]
        offset, deadline = 0, time.monotonic() + _PATIENCE_S
        while offset < end and time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is not None and message.error() is None:
                deadline = time.monotonic() + _PATIENCE_S
                digest = hashlib.sha256(message.value() or b"").digest()
                found.append(digest)
                latest[message.key() or b""] = digest
                offset = (message.offset() or 0) + 1
        reader.close()
        if offset < end:
            yield f"{topic}-{partition}: nothing came from offset {offset} on, of {end}"
        elif topic == "keys":
            wanted = {b"%d" % (number % 50): digest for number, digest in enumerate(sent)}
            if latest != wanted:
                yield f"keys: {len(latest)} keys, not the last values of {len(wanted)}"
        elif found != sent:
            yield f"{topic}-{partition}: {len(found)} records read back, {len(sent)} written"

    def told_errors(self) -> list[str]:
        """Return what nodes have told of as an error: a log that is not cleaned any more, say."""
        lines = (line for node in self._started for line in node.output.splitlines())
        return [line for line in lines if '"level": "error"' in line]

    async def left_behind(self) -> list[str]:
        """Sweep twice, without nodes; return lost and left objects."""
        self.end()
        self._bucket.probability = 0.0
        store, objects = PostgresStore(self.server.url), Bucket(_URL)
        faults: list[str] = []
        try:
            sweep = Sweep(store, objects, PREFIX, _settled)
            deleted = [await sweep.sweep(), await sweep.sweep()]
            there = {each.key async for page in objects.list_keys(PREFIX) for each in page}
            references = store.references([Span(log) for log in self._logs()])
            named = {decode(data).object_key async for some in references for data in some}
        except ObjectsUnavailable as failure:
            return [f"the bucket did not answer: {failure.detail}"]
        finally:
            await store.close()
        print(f"{len(there)} objects; the sweeps deleted {deleted[1]} that nothing named")
        faults += [f"lost: {key}" for key in sorted(named - there)]
        return faults + [f"left behind: {key}" for key in sorted(there - named)]

    def _logs(self) -> list[LogKey]:
        """Return every log of which the database has a chunk."""
        with psycopg.connect(self.server.url) as connection:
            found = connection.execute("SELECT DISTINCT topic_id, partition FROM magnetar.chunks")
            return [LogKey(*row) for row in found]


async def _settled() -> None:
    """No node lives: everything is for good."""


def _insist(ask: Callable[[], object], done: int | None = None) -> None:
    """Ask until it is done, or `done` is the error: of admin requests a client sends each once, and
    the host that it asks may just have died."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            ask()
            return
        except KafkaException as refused:
            if refused.args[0].code() == done:
                return
            if time.monotonic() > deadline:
                raise
        time.sleep(_ASKED_EVERY_S)


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.soak_bucket")
    parser.add_argument("--megabytes", type=int, default=1000, help="of each partition")
    parser.add_argument("--minutes", type=float, default=0, help="of writing, at least")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began_at = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="magnetar-soak-bucket-"))
    directory.chmod(0o755)
    with ExitStack() as stack:
        bucket = stack.enter_context(faulty_bucket(arguments.seed))
        os.environ |= bucket_environment(bucket.url)
        soak = Soak(directory, bucket, arguments.megabytes, arguments.minutes)
        stack.callback(soak.server.stop, signal.SIGQUIT)
        stack.callback(soak.end)
        soak.start()
        soak.write()
        print(f"{time.monotonic() - began_at:6.1f} s  written", flush=True)
        faults = soak.read_back()
        print(f"{time.monotonic() - began_at:6.1f} s  read back", flush=True)
        faults += asyncio.run(soak.left_behind()) + soak.told_errors()
        counts = ", ".join(f"{count} x {fault.value}" for fault, count in bucket.counts.items())
        print(f"faults of the bucket: {counts}")
        print(f"the database at most: {soak.largest_bytes / 1e6:.0f} MB")
    if faults:
        print("BUCKET SOAK FAILED:", *faults[:20], f"see {directory}", sep="\n  ")
        return 1
    shutil.rmtree(directory)
    print("BUCKET SOAK PASSED: all read back as it was written, no object lost or left behind.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
