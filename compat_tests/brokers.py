"""A running broker of either kind, as the tests see it: an address, a directory, start and end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from compat_tests import buckets, class_archive, tool_box
from compat_tests.confluent_client import ConfluentClient
from compat_tests.databases import database_of
from tools.ports import free_port
from tools.reference_kafka import ReferenceKafka
from tools.reference_kafka.process import answers, end

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
#: How many nodes each magnetar has. Some of what one process shows cannot be seen with three.
WORKERS = int(os.environ.get("MAGNETAR_WORKERS", "1"))
#: Whether these are nodes of a cluster kept in PostgreSQL, one database for each broker, and
#: whether older batches move to a bucket there.
OVER_POSTGRESQL = os.environ.get("MAGNETAR_STORAGE") in ("postgresql", "postgresql+s3")
WITH_BUCKET = os.environ.get("MAGNETAR_STORAGE") == "postgresql+s3"
#: Batches move soon, so that there is something in the bucket.
_OBJECTS_AFTER_MS = 500
MAGNETAR = Path(sys.executable).with_name("magnetar")

#: Both kinds run with these. Few internal partitions and fast heartbeats keep tests fast; sessions
#: are long, so that a busy machine ends none: a test that waits for that sets its own.
SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "30000",
    "group.consumer.assignment.interval.ms": "0",
}
#: What only Kafka needs, to be faster than by default. It looks for timed-out transactions every
#: 10 s. A killed node waits 9 s for the end of its former session, and a start up to 2 s for the
#: next heartbeat. A heartbeat costs a millisecond of CPU, and so does the record that an idle
#: controller writes every half a second, while some Kafkas live as long as the tests.
KAFKA_SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "metadata.max.idle.interval.ms": "5000",
}
#: More settings, by kind, for brokers that no test kills. A busy machine stops Kafka's process for
#: seconds, and a controller that takes its broker for gone takes its partitions away.
LONG_LIVED = {"kafka": {"broker.session.timeout.ms": "60000"}}
#: The nodes of a cluster look at their shares each half second. Two looks, s.
_LOOKS_S = 1.2
#: Where Kafkas of this process listen, or have listened.
KAFKA_ADDRESSES: set[str] = set()
#: For tests a small, quickly started machine will do.
KAFKA_OPTIONS = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class BrokerFailed(Exception):
    """The broker ended, or never became ready; the message carries the end of its output."""


class Broker(ABC):
    """One broker on a port and a directory that stay the same when it is killed and started
    again.
    """

    kind: str

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
    ) -> None:
        """`protocols`: what it listens for beside PLAINTEXT, each on a port of its own."""
        self.listeners = {protocol: free_port() for protocol in protocols}
        self.port = free_port()
        self.directory = directory
        self.settings = {**SETTINGS, **(settings or {})}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def node_count(self) -> int:
        """How many nodes clients see."""
        return 1

    @property
    def node_addresses(self) -> list[str]:
        """The address of each node."""
        return [self.bootstrap]

    def address(self, protocol: str) -> str:
        """Return the bootstrap address of one of its other listeners."""
        return f"127.0.0.1:{self.listeners[protocol]}"

    @property
    @abstractmethod
    def log_directory(self) -> Path:
        """The directory that holds `<topic>-<partition>`."""

    def directory_of_node(self, node_id: int) -> Path:
        """Return what a node tells as its directory."""
        return self.log_directory

    @property
    @abstractmethod
    def pid(self) -> int: ...

    def node_pids(self) -> list[int]:
        """Return the processes of its nodes that run now."""
        return [self.pid]

    @abstractmethod
    def start(self) -> None:
        """Start the process and return when it serves."""

    @abstractmethod
    def spawn(self) -> None:
        """Start the process without waiting for anything."""

    @abstractmethod
    def output(self) -> str:
        """Return the last lines the process wrote."""

    @abstractmethod
    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""

    @abstractmethod
    def stop(self) -> None:
        """End it in order, if it runs."""

    def _await_metadata(self, holds: Callable[[ClusterMetadata], bool], failure: str) -> None:
        """Return when `holds` is true of what the broker tells of its nodes and topics."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(KafkaException):
                if holds(admin.list_topics(timeout=1)):
                    return
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{failure}:\n{self.output()}")
            time.sleep(0.02)  # Between two questions.

    def restart(self, *, clean: bool) -> None:
        if clean:
            self.stop()
        else:
            self.kill()
        self.start()

    def partition_directory(self, topic: str, partition: int) -> Path:
        return self.log_directory / f"{topic}-{partition}"


class KafkaBroker(Broker):
    """Apache Kafka from its jars."""

    kind = "kafka"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
        options: tuple[str, ...] | None = None,
    ) -> None:
        """`options`: of its JVM, beside KAFKA_OPTIONS; None: those of a quick start."""
        super().__init__(directory, {**KAFKA_SETTINGS, **(settings or {})}, protocols)
        KAFKA_ADDRESSES.add(self.bootstrap)
        self._kafka = ReferenceKafka(
            self.port,
            directory,
            self.settings,
            KAFKA_OPTIONS + (quick_start() if options is None else options),
            self.listeners,
            _storage_tool,
        )

    @property
    def log_directory(self) -> Path:
        return self._kafka.log_directory

    @property
    def pid(self) -> int:
        return self._kafka.pid

    def use(self, kafka: ReferenceKafka) -> None:
        """Run this one instead, before it is started: the same port, other options."""
        self._kafka = kafka

    def start(self) -> None:
        self._kafka.start()
        self._await_leaders()

    def spawn(self) -> None:
        self._kafka.spawn()

    def output(self) -> str:
        return self._kafka.output()

    def kill(self) -> None:
        self._kafka.kill()

    def stop(self) -> None:
        self._kafka.stop()

    def end(self) -> None:
        """Stop the process in order, and wait for its end without a limit."""
        os.kill(self.pid, signal.SIGTERM)
        self._kafka.wait()

    def _await_leaders(self) -> None:
        """Its port answers before it leads the partitions that it had when it was ended."""
        self._await_metadata(_leads_everything, "Kafka does not lead its partitions")


def _storage_tool(*arguments: str) -> tuple[int, str]:
    ended = tool_box.call("kafka.tools.StorageTool", *arguments)
    return ended.status, ended.output + ended.errors


@cache
def quick_start() -> tuple[str, ...]:
    """Return options with which Kafka's JVM finds its classes loaded and verified, as they were in
    a broker that had served: a start takes less than half of the work then.
    """
    return (f"-XX:SharedArchiveFile={class_archive.written(_archive_classes)}",)


def _archive_classes(archive: Path) -> None:
    with TemporaryDirectory() as directory:
        broker = KafkaBroker(Path(directory), options=(f"-XX:ArchiveClassesAtExit={archive}",))
        with running(broker):
            client = ConfluentClient()
            client.produce(broker.bootstrap, "any", [(None, b"value")], mode="transactional")
            assert len(client.consume(broker.bootstrap, "any")) == 1
            broker.end()


def _leads_everything(found: ClusterMetadata) -> bool:
    partitions = (each for topic in found.topics.values() for each in topic.partitions.values())
    return bool(found.brokers) and all(each.leader in found.brokers for each in partitions)


def _has_shared(node_count: int, found: ClusterMetadata) -> bool:
    """Return whether each node of a cluster leads its share of the coordinators' topics."""
    for name in ("__consumer_offsets", "__transaction_state"):
        partitions = found.topics[name].partitions if name in found.topics else {}
        led = Counter(each.leader for each in partitions.values())
        shares = [led[node_id] for node_id in found.brokers]
        if len(shares) < node_count or max(shares) - min(shares) > 1:
            return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class MagnetarBroker(Broker):
    """magnetar through its command line; it prints a line that begins with `ready` when it
    serves. With MAGNETAR_WORKERS=3 it is a cluster of three nodes, with
    MAGNETAR_STORAGE=postgresql one that is kept in PostgreSQL, with postgresql+s3 in a bucket too.
    """

    kind = "magnetar"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
        workers: int | None = None,
    ) -> None:
        """`workers`: how many nodes; None: as MAGNETAR_WORKERS says."""
        super().__init__(directory, settings, protocols)
        self.workers = workers or WORKERS
        while not all(_is_free(self.port + number) for number in range(1, self.workers)):
            self.port = free_port()
        #: The database of the cluster whose nodes they are; None: they share the directory.
        self.storage = database_of(str(directory)) if OVER_POSTGRESQL else None
        #: What `serve` and its flags follow.
        self.program = [str(MAGNETAR)]
        self._output = directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_directory(self) -> Path:
        return self.directory / "data"

    def directory_of_node(self, node_id: int) -> Path:
        return (
            self.log_directory / "nodes" / str(node_id) if self.workers > 1 else self.log_directory
        )

    def partition_directory(self, topic: str, partition: int) -> Path:
        name = f"{topic}-{partition}"
        for node in self.log_directory.glob("nodes/*"):
            if (node / name).exists():
                return node / name
        return self.log_directory / name

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def node_count(self) -> int:
        return self.workers

    @property
    def node_addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.port + number}" for number in range(self.workers)]

    def node_pids(self) -> list[int]:
        """Return the processes of its nodes that run now."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    @property
    def returncode(self) -> int | None:
        """The exit status of a process that ended on its own, else None."""
        process = self._process  # Another thread may end it meanwhile.
        return None if process is None else process.poll()

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        offset = self._output.stat().st_size if self._output.exists() else 0
        self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready(offset):
            if self.returncode is not None:
                raise BrokerFailed(f"magnetar ended with {self.returncode}:\n{self.output()}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerFailed(f"magnetar is not ready:\n{self.output()}")
            time.sleep(0.005)
        if self.storage is not None and self.workers > 1:
            # The first node leads everything until the others have joined: a partition that a test
            # has just made would move with the rest.
            self._await_metadata(partial(_has_shared, self.workers), "nodes lack their shares")
            time.sleep(_LOOKS_S)  # Nodes look once more, and move what seems uneven by then.

    def spawn(self) -> None:
        command = [*self.program, "serve", "--data-dir", str(self.log_directory)]
        if self.listeners:
            every = {"PLAINTEXT": self.port, **self.listeners}
            addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in every.items())
            command += ["--set", f"listeners={addresses}"]
        else:
            command += ["--listen", self.bootstrap]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        if self.workers > 1:
            command += ["--workers", str(self.workers)]
        if self.storage is not None:
            command += ["--storage", self.storage]
        environment = dict(os.environ)
        if WITH_BUCKET:
            environment |= buckets.server_environment()
            command += ["--objects", buckets.prefix_of(str(self.directory))]
            command += ["--set", f"cluster.objects.after.ms={_OBJECTS_AFTER_MS}"]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def output(self) -> str:
        if not self._output.exists():
            return ""
        return self._output.read_text(errors="replace")[-6000:]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        if not end(process, number, STOP_TIMEOUT_S):
            raise BrokerFailed(f"magnetar did not stop on {number.name}:\n{self.output()}")
        if number is signal.SIGTERM and process.returncode != 0:
            ended = f"magnetar ended with {process.returncode} on {number.name}"
            raise BrokerFailed(f"{ended}:\n{self.output()}")

    def _is_ready(self, offset: int) -> bool:
        with self._output.open("rb") as output:
            output.seek(offset)
            if not any(b" ready on " in line for line in output):
                return False
        return answers(self.port)


def make_broker(
    kind: str,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    protocols: Sequence[str] = (),
    workers: int | None = None,
) -> Broker:
    """Return a broker of `kind`, not yet started. `workers`: as `MagnetarBroker`."""
    if kind == "magnetar":
        return MagnetarBroker(directory, settings, protocols, workers)
    return KafkaBroker(directory, settings, protocols)


@contextmanager
def started_when_asked(
    make: Callable[[str], Broker], prepare: Callable[[Broker], None] | None = None
) -> Iterator[Callable[[str], Broker]]:
    """Yield what returns the broker of a kind: made, started and prepared when asked for first."""
    started: dict[str, Broker] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Broker:
            if kind not in started:
                broker = make(kind)
                # That magnetar ends in order is looked at; Kafka's end only costs time.
                stack.callback(broker.stop if kind == "magnetar" else broker.kill)
                broker.start()
                if prepare is not None:
                    prepare(broker)
                started[kind] = broker
            return started[kind]

        yield get


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Start `broker`; it is killed, if it still runs, at the end of the block."""
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
