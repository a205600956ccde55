"""Longer mishaps of a cluster, which `make soak` runs: clocks, ids, a database that comes and goes.

There are two nodes over one server. The tests run in this order, and each leaves both nodes
serving. The mishaps that CI runs for each change are in `test_cluster_mishaps`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compat_tests.clusters import Cluster, Node
from compat_tests.confluent_client import producer
from compat_tests.test_cluster import leaders, make_topics, read_all
from compat_tests.test_cluster_failures import LEADS, PATIENCE_S, await_said, writing
from compat_tests.waiting import eventually
from tools.postgresql import PostgresServer, enterable_directory
from tools.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

#: A `sitecustomize` that sets the clock of a Python process an hour ahead.
AN_HOUR_AHEAD = """
import time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + 3600
time.time_ns = lambda: now_ns() + 3_600_000_000_000
"""


class Place:
    """The server of the database, and two nodes; clients reach the second one through a proxy."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.server = PostgresServer(directory / "postgresql")
        self.server.start()
        stack.callback(self.server.stop, signal.SIGQUIT)
        self.cluster = Cluster(self.server, directory, dict.fromkeys((1, 2), self.server.url))
        stack.callback(self.cluster.end)
        second = self.cluster.nodes[2]
        self.client_proxy = TcpProxy(second.port)
        stack.callback(self.client_proxy.close)
        advertised = f"PLAINTEXT://127.0.0.1:{self.client_proxy.port}"
        settings = {**self.cluster.settings, "advertised.listeners": advertised}
        again = Node(2, self.server.url, directory / "2", settings)
        self.client_proxy.point_at(again.port)
        self.cluster.nodes[2] = again
        for node in self.cluster.nodes.values():
            node.spawn()
            node.await_ready()

    def ask(self, statements: str) -> list[tuple[Any, ...]]:
        """Run SQL as an administrator whom no setting of the server binds."""
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(self.server.url, autocommit=True, options=options) as connection:
            found = connection.execute(statements.encode())
            return found.fetchall() if found.description else []

    def incarnation(self, node_id: int) -> int:
        rows = self.ask("SELECT node_id, incarnation FROM magnetar.nodes")
        return int(dict(rows)[node_id])

    def await_take_over(self, node_id: int, incarnation: int) -> None:
        """Return as soon as another node has fenced this incarnation."""
        eventually(lambda: self.incarnation(node_id) != incarnation, PATIENCE_S)

    def end_connections(self) -> int:
        """End the connections of all nodes; return how many there were."""
        return len(
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with enterable_directory("magnetar-mishaps-") as directory, ExitStack() as stack:
        yield Place(directory, stack)


def test_the_database_dies_during_a_take_over(place: Place) -> None:
    node = place.cluster.nodes[2]
    with writing(place.cluster, "dies-then"):
        before, ready = place.incarnation(2), node.output.count(" ready on ")
        node.kill_host()
        place.await_take_over(2, before)
        place.server.stop(signal.SIGQUIT)
        place.server.start()
        eventually(lambda: {*leaders(place.cluster, "dies-then")} == {1}, PATIENCE_S)
        node.spawn()
        node.await_ready(ready + 1)


@contextmanager
def again_and_again(work: Callable[[], int]) -> Iterator[list[int]]:
    """Do `work` three times a second during the block; yield the list of what it returns."""
    ends, returned = threading.Event(), [0]

    def run() -> None:
        while not ends.wait(0.3):
            returned.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield returned
    finally:
        ends.set()
        thread.join()


def test_transactions_end_though_connections_are_ended_all_the_time(place: Place) -> None:
    cluster = place.cluster
    make_topics(cluster, "ended")
    writer = producer(cluster.bootstrap, transactional_id="ended")
    writer.init_transactions(PATIENCE_S)
    committed: list[str] = []
    with again_and_again(place.end_connections) as ended:
        for number in range(10):
            values = [f"{number}-{index}" for index in range(6)]
            writer.begin_transaction()
            for value in values:
                writer.produce("ended", value, value)
            if number % 3 == 2:
                writer.abort_transaction(PATIENCE_S)
            else:
                writer.commit_transaction(PATIENCE_S)
                committed += values
    assert sum(ended) > 10
    assert sorted(read_all(cluster, "ended", len(committed))) == sorted(committed)


def test_a_clock_that_is_wrong_takes_no_lease_and_keeps_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = place.cluster.nodes[2], place.cluster.nodes[1]
    with writing(place.cluster, "an-hour-ahead") as writer:
        (place.directory / "sitecustomize.py").write_text(AN_HOUR_AHEAD)
        ready, led = map(node.output.count, (" ready on ", LEADS))
        before = place.incarnation(1)
        assert node.stop() == 0
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(place.directory))
            node.spawn()
        node.await_ready(ready + 1)
        await_said(node, LEADS, led)
        assert place.incarnation(1) == before, "nothing of the first node was taken over"
        # By the clock of the database the lease of a dead node ends, and no earlier.
        ready = other.output.count(" ready on ")
        died = time.monotonic()
        other.kill_host()
        eventually(lambda: {*leaders(place.cluster, "an-hour-ahead")} == {2}, PATIENCE_S)
        assert time.monotonic() - died > 3
        writer.await_more()
        other.spawn()
        other.await_ready(ready + 1)


def test_a_second_node_of_the_same_id_is_refused_and_the_first_one_serves(place: Place) -> None:
    twin = Node(1, place.server.url, place.directory / "twin", place.cluster.settings)
    before = place.incarnation(1)
    twin.spawn()
    assert twin.wait() == 2
    at = place.cluster.nodes[1].data
    assert "node 1 lives at another place" in twin.output and str(at) in twin.output
    assert place.incarnation(1) == before
