"""The failures of a cluster and of its PostgreSQL, by processes; docs/cluster.md lists all.

Two nodes over a primary with a synchronous standby; the second node reaches them through a proxy.
The tests follow one another: each leaves both nodes serving, the later ones on another server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.brokers import MAGNETAR, SETTINGS
from compat_tests.clusters import Cluster, Node
from compat_tests.confluent_client import producer
from compat_tests.test_cluster import leaders, make_topics, read_all
from compat_tests.waiting import eventually
from tools.postgresql import PostgresServer, enterable_directory
from tools.reference_kafka.broker import free_port
from tools.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

#: A lease, what follows it, and clients that back off, on a busy machine.
PATIENCE_S = 120.0
#: What a node logs when partitions have come to it.
LEADS = "partitions are led here now"


class Replicated:
    """Two nodes, the servers of their database in the order in which they are primary, the proxy of
    the second node, and the one through which the last server follows."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        self._ports = [free_port() for _ in range(3)]
        first = PostgresServer(directory / "a", self._ports[0], synchronous_standby_names="*")
        self._serve(first)
        second = first.standby(directory / "b", self._ports[1])
        self._serve(second)
        self.servers = [first, second]
        self.fail_overs = 0
        self.proxy = TcpProxy(first.port)
        stack.callback(self.proxy.close)
        urls = {1: self.url, 2: first.url.replace(str(first.port), str(self.proxy.port))}
        self.cluster = Cluster(first, directory, urls)
        stack.callback(self.cluster.end)
        self.cluster.start()

    @property
    def url(self) -> str:
        """All servers, of which one is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def follow(self, through: int) -> PostgresServer:
        """Start one more standby, behind the server that is primary now."""
        third = self.servers[-1].standby(self.directory / "c", self._ports[2], through=through)
        self._serve(third)
        self.servers.append(third)
        return third

    def fail_over(self) -> None:
        """Kill the primary, and let the last server take its place."""
        *_, primary, standby = self.servers
        self.fail_overs += 1
        primary.stop(signal.SIGQUIT)
        standby.promote()
        self.proxy.point_at(standby.port)

    def _serve(self, server: PostgresServer) -> None:
        server.start()
        self._stack.callback(server.stop, signal.SIGQUIT)


@pytest.fixture(scope="module")
def place() -> Iterator[Replicated]:
    with enterable_directory("magnetar-failures-") as directory, ExitStack() as stack:
        yield Replicated(directory, stack)


def await_said(node: Node, words: str, times: int) -> None:
    """Return when a node has said this more often than so many times."""
    try:
        eventually(lambda: node.output.count(words) > times, PATIENCE_S)
    except AssertionError:
        raise AssertionError(f"{words!r} is not said: {node.output[-4000:]}") from None


class Writing(threading.Thread):
    """Produces numbers until it is told to stop, and knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self._ends = threading.Event()
        self.acknowledged: list[str] = []
        self.refused: list[object] = []
        self.left = -1

    def run(self) -> None:
        writer = producer(
            self._cluster.bootstrap, enable_idempotence=True, delivery_timeout_ms=200_000
        )
        number = 0
        while not self._ends.wait(0.01):
            # In each partition by turns: some are led by every node.
            value = str(number)
            writer.produce(self._topic, value, value, on_delivery=self._told)
            number += 1
            writer.poll(0)
        self.left = writer.flush(PATIENCE_S)

    def _told(self, error: object, message: object) -> None:
        if error:
            self.refused.append(error)
        else:
            self.acknowledged.append(message.value().decode())  # type: ignore[attr-defined]  # a Message

    def end(self) -> None:
        """Return when everything that was sent is acknowledged."""
        self._ends.set()
        self.join(2 * PATIENCE_S)
        assert (self.left, self.refused) == (0, [])

    def await_more(self, count: int = 20) -> None:
        """Return when so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, PATIENCE_S)


@contextmanager
def writing(cluster: Cluster, topic: str) -> Iterator[Writing]:
    """Write meanwhile; then all of it is there, once."""
    # A node that is still starting gets nothing of a new topic.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    eventually(lambda: {*admin.list_topics(timeout=30).brokers} == {*cluster.nodes}, PATIENCE_S)
    make_topics(cluster, topic)
    eventually(lambda: {*leaders(cluster, topic)} == {*cluster.nodes}, PATIENCE_S)
    writer = Writing(cluster, topic)
    writer.start()
    try:
        writer.await_more()
        yield writer
        writer.await_more()
    finally:
        writer.end()
    found = read_all(cluster, topic, len(writer.acknowledged))
    assert sorted(found, key=int) == sorted(writer.acknowledged, key=int)


@pytest.mark.parametrize("failure", ["paused", "cut off"])
def test_a_node_that_is_taken_over_and_comes_back_changes_nothing(
    place: Replicated, failure: str
) -> None:
    cluster, node = place.cluster, place.cluster.nodes[2]
    topic = failure.replace(" ", "-")
    with writing(cluster, topic) as writer:
        paused, ended, led = node.pid(), *map(node.output.count, ("node ended", LEADS))
        if failure == "paused":
            os.kill(paused, signal.SIGSTOP)
        else:
            # Half-open: what it commits arrives when others lead already.
            place.proxy.hang()
        eventually(lambda: {*leaders(cluster, topic)} == {1}, PATIENCE_S)
        writer.await_more()
        if failure == "paused":
            os.kill(paused, signal.SIGCONT)
        else:
            place.proxy.heal()
        # It finds itself fenced, ends, and begins anew.
        await_said(node, "node ended", ended)
        await_said(node, LEADS, led)
        assert "was taken over" in node.output


def test_a_promoted_synchronous_standby_has_everything(place: Replicated) -> None:
    with writing(place.cluster, "synchronous"):
        place.fail_over()


def test_a_server_that_is_stopped_at_once_and_started_again_has_everything(
    place: Replicated,
) -> None:
    with writing(place.cluster, "started-again"):
        place.servers[-1].stop(signal.SIGQUIT)
        place.servers[-1].start()


def test_a_standby_that_was_behind_halts_the_cluster_until_the_loss_is_accepted(
    place: Replicated,
) -> None:
    cluster = place.cluster
    if not place.fail_overs:
        # The first server waits for its standby: this test is about one that does not.
        place.fail_over()
    with writing(cluster, "kept"):
        pass
    link = TcpProxy(place.servers[-1].port)
    place.follow(link.port)
    refused = Node(3, place.url, place.directory / "3", SETTINGS)
    refused.spawn()
    assert refused.wait() == 2
    assert "none of them synchronous" in refused.output
    assert "--allow-async-storage" in refused.output

    link.cut()
    with writing(cluster, "lost"):
        pass
    place.fail_over()
    for node in cluster.nodes.values():
        eventually(lambda node=node: "the cluster has halted" in node.output, PATIENCE_S)  # type: ignore[misc]  # bound now
    outputs = [node.output for node in cluster.nodes.values()]
    assert any("the database has lost" in each or "was acknowledged" in each for each in outputs)
    link.close()

    told = repair(place.url)
    assert told.returncode == 1 and "lost: node" in told.stdout and "--accept-loss" in told.stderr
    assert repair(place.url, "--accept-loss").returncode == 0
    with writing(cluster, "after"):
        pass
    assert read_all(cluster, "kept", 20)


def repair(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `magnetar cluster repair`."""
    command = [str(MAGNETAR), "cluster", "repair", "--storage", url, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)
