"""The clusters under measurement: three nodes each, all of them on this machine.

magnetar's nodes lie over a PostgreSQL with its usual settings, which they reach through its Unix
socket. At a distance that server has a synchronous standby, which is 1 ms away each way. Kafka has
a controller in its first node, three replicas of everything, and `min.insync.replicas=2`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks.distance import distant
from benchmarks.subjects import cpu_seconds
from compat_tests import brokers
from compat_tests.brokers import Broker, KafkaBroker, MagnetarBroker
from tools.ports import free_port
from tools.postgresql import PostgresServer, enterable_directory
from tools.reference_kafka import ReferenceKafka

if TYPE_CHECKING:
    from psycopg import Connection

NODES = 3
DISTANCE_MS = 1.0
_READY_S = 180.0
_KAFKA_OPTIONS = ("-server", "-Xms384m", "-Xmx384m", "-XX:+UseG1GC")
#: As PostgreSQL has them where it was not told otherwise. Its socket lies elsewhere then.
_POSTGRESQL = {"shared_buffers": "128MB", "max_connections": "100", "unix_socket_directories": "."}
#: Of all that the cluster has in PostgreSQL.
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'magnetar' AND relkind = 'r'"""
_COMMITS = "SELECT coalesce(sum(commit_seq), 0)::bigint FROM magnetar.nodes"
_NODES_SIZE = "SELECT pg_total_relation_size('magnetar.nodes')"


class Database:
    """The PostgreSQL of a cluster, for its figures."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.local_url
        self._pid = server.pid
        self._connection: Connection[tuple[int, ...]] = psycopg.connect(self.url, autocommit=True)

    def cpu_seconds(self) -> float:
        """Return user and system time of all its processes that run."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return sum(cpu_seconds(pid) for pid in (self._pid, *map(int, children)))

    def _number(self, statement: str) -> int:
        found = self._connection.execute(statement.encode()).fetchone()
        assert found is not None
        return found[0]

    def commits(self) -> int:
        """Return how many commits all nodes have made."""
        return self._number(_COMMITS)

    def size_bytes(self) -> int:
        """Return what all tables take with their indexes."""
        return self._number(_SIZE)

    def nodes_size_bytes(self) -> int:
        """Return what the rows of the nodes take, which every commit writes anew."""
        return self._number(_NODES_SIZE)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


@contextmanager
def database_server(path: Path, **settings: str) -> Iterator[PostgresServer]:
    """Serve a database that is empty, in a directory that every user may enter."""
    server = PostgresServer(path / "primary", 0, **_POSTGRESQL, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGQUIT)


@contextmanager
def magnetar_cluster(
    *, is_distant: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Broker, Database]]:
    """Serve by three nodes, over a database that has a distant standby or none."""
    with ExitStack() as stack:
        path = stack.enter_context(enterable_directory("bench-cluster-"))
        standbys = "*" if is_distant else ""
        server = stack.enter_context(database_server(path, synchronous_standby_names=standbys))
        if is_distant:
            through = stack.enter_context(distant(server.port, DISTANCE_MS))
            standby = server.standby(path / "standby", through=through)
            standby.start()
            stack.callback(standby.stop, signal.SIGQUIT)
        broker = MagnetarBroker(path / "nodes", workers=NODES)
        broker.settings = {"num.partitions": "6", **(settings or {})}
        broker.storage = server.local_url
        stack.enter_context(brokers.running(broker))
        database = Database(server)
        stack.callback(database.close)
        yield broker, database


class _KafkaCluster(KafkaBroker):
    """Three nodes; the first is what callers see of them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        settings = {
            "num.partitions": "6",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }
        first = ReferenceKafka(self.port, path / "1", settings, _KAFKA_OPTIONS)
        self.use(first)
        self._others = [
            ReferenceKafka(
                free_port(),
                path / str(node_id),
                {**settings, "node.id": str(node_id)},
                _KAFKA_OPTIONS,
                joins=first,
            )
            for node_id in range(2, NODES + 1)
        ]

    def start(self) -> None:
        super().start()
        for node in self._others:
            node.spawn()
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = monotonic() + _READY_S
        while len(admin.list_topics(timeout=_READY_S).brokers) < NODES:
            assert monotonic() < deadline, [node.output() for node in self._others]
            sleep(0.2)

    def node_pids(self) -> list[int]:
        return [self.pid, *(node.pid for node in self._others)]

    def kill(self) -> None:
        super().kill()
        for node in self._others:
            node.kill()


@contextmanager
def kafka_cluster() -> Iterator[Broker]:
    """Serve by three nodes of Kafka."""
    with (
        enterable_directory("bench-cluster-") as path,
        brokers.running(_KafkaCluster(path)) as broker,
    ):
        yield broker
