"""Failures of a cluster and of its PostgreSQL, with real processes. docs/testing.md lists all.

There are two nodes over a primary with a synchronous standby. The second node reaches the primary
through a proxy. Each test leaves both nodes serving. After one that fails over, the next one runs
on the server that was the standby, which has got a standby of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.brokers import MAGNETAR, SETTINGS
from compat_tests.clusters import Cluster, Node
from compat_tests.confluent_client import consumer, producer
from compat_tests.test_cluster import leaders, make_topics, read_all
from compat_tests.waiting import eventually
from tools.ports import free_port
from tools.postgresql import PostgresServer, enterable_directory
from tools.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

#: How long a test waits: for a lease, what follows it, and clients that back off on a busy machine.
PATIENCE_S = 120.0
#: A client's time limits in a test that shows that the client does not wait for them.
LONG_MS = 300_000
LEASE_S = 6.0
#: A node logs this when it has become the leader of partitions.
LEADS = "partitions are led here now"
#: A node logs this when it ends because others lead its partitions. It learns that from its own
#: commit or from the catalog, whichever comes first.
FENCED = "taken over"
#: A node logs this while it starts and the database does not answer.
WAITS = "the start waits for the database"


class Replicated:
    """Two nodes, the servers of their database, and the proxy between the second node and them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        self._ports = [free_port() for _ in range(3)]
        self._made = count()
        self.primary = PostgresServer(self._place(), self._ports[0])
        self._serve(self.primary)
        #: The server that takes the primary's place when that fails, if there is one.
        self.standby: PostgresServer | None = None
        self.follow()
        self.proxy = TcpProxy(self.primary.port)
        stack.callback(self.proxy.close)
        through = self.primary.url.replace(str(self.primary.port), str(self.proxy.port))
        self.cluster = Cluster(self.primary, directory, {1: self.url, 2: through})
        stack.callback(self.cluster.end)
        # One after the other: so the second node gets shards of groups as its share.
        for node in self.cluster.nodes.values():
            node.spawn()
            node.await_ready()

    @property
    def url(self) -> str:
        """The URL that names all servers, and leads to the one that is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def follow(self) -> None:
        """Give the primary a synchronous standby, unless it has one."""
        if self.standby is None:
            self.follow_through(self.primary.port)
            self._require_standbys("*")

    def follow_through(self, port: int) -> None:
        """Give the primary a standby that reaches it at `port`, and that no commit waits for."""
        own = next(each for each in self._ports if each != self.primary.port)
        self.standby = self.primary.standby(self._place(), own, through=port)
        self._serve(self.standby)

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take its place, without one of its own."""
        self.primary.stop(signal.SIGQUIT)
        self.promote()

    def promote(self) -> None:
        """Let the standby take the primary's place, without one of its own."""
        assert self.standby is not None
        self.primary, self.standby = self.standby, None
        self.primary.promote()
        # The setting came with the copy.
        self._require_standbys("")
        self.proxy.point_at(self.primary.port)

    def _require_standbys(self, names: str) -> None:
        """Let the primary's commits wait for standbys of these names; empty: for none."""
        with psycopg.connect(self.primary.url, autocommit=True) as admin:
            admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
            admin.execute("SELECT pg_reload_conf()")
            if names:
                state = "SELECT sync_state FROM pg_stat_replication"
                eventually(lambda: ("sync",) in admin.execute(state).fetchall(), PATIENCE_S)
                # A node asks for standbys when it connects.
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'magnetar%'"
                )

    def _place(self) -> Path:
        return self.directory / f"server-{next(self._made)}"

    def _serve(self, server: PostgresServer) -> None:
        server.start()
        self._stack.callback(server.stop, signal.SIGQUIT)


@pytest.fixture(scope="module")
def replicated() -> Iterator[Replicated]:
    with enterable_directory("magnetar-failures-") as directory, ExitStack() as stack:
        yield Replicated(directory, stack)


@pytest.fixture
def place(replicated: Replicated) -> Replicated:
    """The nodes, over a primary with a synchronous standby."""
    replicated.follow()
    return replicated


def await_said(node: Node, words: str, times: int) -> None:
    """Return when a node has logged `words` more than `times` times."""
    try:
        eventually(lambda: node.output.count(words) > times, PATIENCE_S)
    except AssertionError:
        raise AssertionError(f"{words!r} is not said: {node.output[-4000:]}") from None


class Writing(threading.Thread):
    """Produces numbers until it is told to stop, and knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, settings: Mapping[str, object]) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic, self._settings = cluster, topic, settings
        self._ends = threading.Event()
        self.sent = 0
        self.acknowledged: list[str] = []
        self.refused: list[object] = []
        self.left = -1

    def run(self) -> None:
        writer = producer(
            self._cluster.bootstrap,
            enable_idempotence=True,
            delivery_timeout_ms=2 * LONG_MS,
            **self._settings,
        )
        while not self._ends.wait(0.01):
            # The key spreads the values over all partitions, and so over both nodes.
            value = str(self.sent)
            writer.produce(self._topic, value, value, on_delivery=self._told)
            self.sent += 1
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

    def await_all(self) -> None:
        """Return when everything is acknowledged that was sent by now."""
        wanted = {*map(str, range(self.sent))}
        eventually(lambda: wanted <= {*self.acknowledged}, PATIENCE_S)


class Reading(threading.Thread):
    """Reads a topic as the one member of a group, and commits what it has read."""

    def __init__(self, cluster: Cluster, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._client = consumer(cluster.bootstrap, group, socket_timeout_ms=LONG_MS)
        self._ends = threading.Event()
        #: The values that committed offsets cover.
        self.done: set[str] = set()
        self._read: set[str] = set()

    def run(self) -> None:
        self._client.subscribe([self._topic])
        while not self._ends.is_set():
            messages = [each for each in self._client.consume(100, 0.1) if each.error() is None]
            self._read.update((message.value() or b"").decode() for message in messages)
            if self._read == self.done:
                continue
            with suppress(KafkaException):  # The coordinator moves: the next commit covers it.
                self._client.commit(asynchronous=False)
                self.done |= self._read
        self._client.close()

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENCE_S)


@contextmanager
def reading(cluster: Cluster, topic: str, node_id: int) -> Iterator[Reading]:
    """Read during the block, in a group that this node coordinates."""
    eventually(lambda: node_id in leaders(cluster, "__consumer_offsets"), PATIENCE_S)
    partition = leaders(cluster, "__consumer_offsets").index(node_id)
    groups = (f"{topic}-{number}" for number in count())
    reader = Reading(cluster, topic, next(each for each in groups if shard(each) == partition))
    reader.start()
    try:
        yield reader
    finally:
        reader.end()


def shard(group: str) -> int:
    """Return the partition of a group's offsets, as Kafka chooses it (String.hashCode)."""
    java_hash = 0
    for character in group:
        java_hash = (31 * java_hash + ord(character)) & 0xFFFFFFFF
    return (java_hash & 0x7FFFFFFF) % int(SETTINGS["offsets.topic.num.partitions"])


def make_spread(cluster: Cluster, topic: str) -> None:
    """Make a topic of which every node leads some partition.

    A node that is still starting gets no partition of a new topic. Then the topic is made anew.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    nodes, found = {*cluster.nodes}, set[int]()

    def is_led() -> bool:
        nonlocal found
        # Empty at a node that has not heard of the topic yet. A partition without a leader has -1.
        found = {*leaders(cluster, topic)}
        return bool(found) and found <= nodes

    def is_spread() -> bool:
        make_topics(cluster, topic)
        eventually(is_led, PATIENCE_S)
        if found == nodes:
            return True
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        eventually(lambda: topic not in admin.list_topics(timeout=30).topics, PATIENCE_S)
        return False

    try:
        eventually(lambda: {*admin.list_topics(timeout=30).brokers} == nodes, PATIENCE_S)
        eventually(is_spread, PATIENCE_S)
    except AssertionError:
        told = "\n".join(node.output[-6000:] for node in cluster.nodes.values())
        raise AssertionError(f"{topic} is led by {found}: {told}") from None


@contextmanager
def writing(cluster: Cluster, topic: str, **settings: object) -> Iterator[Writing]:
    """Write during the block. Then check that each record is in the topic, once.

    `settings` are the producer's.
    """
    make_spread(cluster, topic)
    writer = Writing(cluster, topic, settings)
    writer.start()
    try:
        writer.await_more()
        yield writer
        writer.await_more()
    finally:
        writer.end()
    found = read_all(cluster, topic, len(writer.acknowledged))
    assert sorted(found, key=int) == sorted(writer.acknowledged, key=int)


def test_a_node_that_is_paused_past_its_lease_changes_nothing_when_it_wakes(
    place: Replicated,
) -> None:
    cluster, node = place.cluster, place.cluster.nodes[2]
    with writing(cluster, "paused") as writer:
        paused, ended, led = node.pid(), *map(node.output.count, ("node ended", LEADS))
        os.kill(paused, signal.SIGSTOP)
        eventually(lambda: {*leaders(cluster, "paused")} == {1}, PATIENCE_S)
        writer.await_more()
        os.kill(paused, signal.SIGCONT)
        # The process finds that it is fenced, and ends; the supervisor starts another one.
        await_said(node, "node ended", ended)
        await_said(node, LEADS, led)
        assert FENCED in node.output, node.output


def test_clients_of_a_node_that_is_cut_off_go_on_at_the_others(place: Replicated) -> None:
    cluster, node = place.cluster, place.cluster.nodes[2]
    patient = {"request_timeout_ms": LONG_MS, "socket_timeout_ms": LONG_MS}
    with (
        writing(cluster, "cut-off", **patient) as writer,
        reading(cluster, "cut-off", node.node_id) as reader,
    ):
        eventually(lambda: reader.done, PATIENCE_S)
        said = ("node ended", LEADS, "clients are turned away")
        ended, led, away = map(node.output.count, said)
        # Half open: the commits of the node arrive when the other node leads already.
        place.proxy.hang()
        eventually(lambda: {*leaders(cluster, "cut-off")} == {1}, PATIENCE_S)
        # Clients do not wait for answers until their time limits: they send again elsewhere.
        writer.await_all()
        wanted = {*writer.acknowledged}
        eventually(lambda: wanted <= reader.done, PATIENCE_S)
        await_said(node, "clients are turned away", away)
        place.proxy.heal()
        await_said(node, "node ended", ended)
        await_said(node, LEADS, led)
        assert FENCED in node.output, node.output


def test_without_its_synchronous_standby_nothing_is_acknowledged_and_no_node_is_taken_over(
    place: Replicated,
) -> None:
    nodes = [*place.cluster.nodes.values()]
    with writing(place.cluster, "standby-away") as writer:
        ended = [node.output.count("node ended") for node in nodes]
        away = [node.output.count("clients are turned away") for node in nodes]
        standby = place.standby
        assert standby is not None
        standby.pause()
        for node, times in zip(nodes, away, strict=True):
            await_said(node, "clients are turned away", times)
        acknowledged = len(writer.acknowledged)
        # No lease ends, so no node is taken over: commits have their effect, which renews leases,
        # and a node without a commit renews its lease when it has waited in vain. Three leases show
        # that it does so more than once.
        time.sleep(3 * LEASE_S)
        assert len(writer.acknowledged) == acknowledged
        standby.resume()
        writer.await_all()
        told = "\n".join(node.output for node in nodes)
        assert [node.output.count("node ended") for node in nodes] == ended, told


@contextmanager
def starting_without_standby(place: Replicated, node: Node) -> Iterator[None]:
    """Take the synchronous standby away meanwhile, and kill a node; its next start waits then."""
    waits, standby = node.output.count(WAITS), place.standby
    assert standby is not None
    standby.pause()
    try:
        node.kill_process()
        await_said(node, WAITS, waits)
        yield
    finally:
        standby.resume()


def test_a_node_that_starts_without_the_synchronous_standby_waits_for_it(place: Replicated) -> None:
    node = place.cluster.nodes[2]
    with writing(place.cluster, "starts-without") as writer:
        said = ("node ended", WAITS, "fatal")
        ended, waits, fatal = map(node.output.count, said)
        with starting_without_standby(place, node):
            # So long that it asks several times.
            time.sleep(2 * LEASE_S)
        writer.await_all()
        eventually(lambda: 2 in leaders(place.cluster, "starts-without"), PATIENCE_S)
        assert [*map(node.output.count, said)] == [ended + 1, waits + 1, fatal], node.output


def test_a_node_that_waits_for_the_synchronous_standby_stops_at_once(place: Replicated) -> None:
    node = place.cluster.nodes[2]
    with writing(place.cluster, "stops-without") as writer:
        ready = node.output.count(" ready on ")
        with starting_without_standby(place, node):
            told_s = time.monotonic()
            assert node.stop() == 0, node.output
            # Sooner than a start that may still end: that one has ten seconds.
            assert time.monotonic() - told_s < 9.0, node.output
        writer.await_all()
        node.spawn()
        node.await_ready(ready + 1)


def test_a_promoted_synchronous_standby_has_everything(place: Replicated) -> None:
    with writing(place.cluster, "synchronous"):
        place.fail_over()


def test_a_primary_that_hangs_gives_way_to_the_promoted_standby(place: Replicated) -> None:
    """It refuses no connection, as one whose host has vanished, and the URL names it first."""
    hangs = place.primary
    with writing(place.cluster, "hangs") as writer:
        hangs.pause()
        try:
            place.promote()
            # Until then a node that reaches no server leads what it led.
            time.sleep(2 * LEASE_S)
            writer.await_all()
            eventually(lambda: {*leaders(place.cluster, "hangs")} == {1, 2}, 5 * LEASE_S)
        finally:
            hangs.kill()


def test_a_server_that_is_stopped_at_once_and_started_again_has_everything(
    place: Replicated,
) -> None:
    with writing(place.cluster, "started-again"):
        place.primary.stop(signal.SIGQUIT)
        place.primary.start()


def test_a_standby_that_was_behind_halts_the_cluster_until_the_loss_is_accepted(
    place: Replicated,
) -> None:
    cluster = place.cluster
    # To a server without a standby.
    place.fail_over()
    with writing(cluster, "kept"):
        pass
    link = TcpProxy(place.primary.port)
    place.follow_through(link.port)
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
