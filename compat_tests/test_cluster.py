"""A cluster over PostgreSQL: real clients, three nodes, and the death of one of them.

Nothing that was acknowledged is lost, a transaction is there whole or not at all, and clients go on
by themselves: at once where a process dies, after its lease where a host does. The nodes speak TLS
to each other; those of the other files speak plain text.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaPythonTopic
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from compat_tests import tool_box
from compat_tests.brokers import MAGNETAR
from compat_tests.clusters import Cluster, Node, running_cluster
from compat_tests.confluent_client import consumer, producer
from compat_tests.offsets import NOT_YET, begin_at_positions, positions
from compat_tests.raw import Connection
from compat_tests.secured import Certificates, write_certificates
from compat_tests.waiting import eventually
from tools.postgresql import enterable_directory

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

PARTITIONS = 6
#: A lease and what follows it, on a busy machine.
PATIENCE_S = 60.0


def peers_in_tls(certificates: Certificates) -> dict[str, str]:
    """Return what makes nodes speak TLS to each other."""
    return {
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[Cluster]:
    """Three nodes; each test leaves them all running."""
    with (
        enterable_directory("magnetar-cluster-") as directory,
        running_cluster(directory, peers_in_tls(certificates)) as running,
    ):
        yield running


def make_topics(cluster: Cluster, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        made.result(PATIENCE_S)


def leaders(cluster: Cluster, topic: str) -> list[int]:
    """Return who leads each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return [found[index].leader for index in sorted(found)]


def read_all(cluster: Cluster, topic: str, count: int) -> list[str]:
    """Return the committed values of a topic, once there are `count`; a second is left for more."""
    reader = consumer(
        cluster.bootstrap,
        f"reader-of-{topic}-{time.monotonic_ns()}",
        isolation_level="read_committed",
    )
    # Not as a member: where a group begins while its coordinator moves, librdkafka may never ask
    # for its offsets again (docs/clients.md).
    reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    last = None
    while time.monotonic() < deadline and (last is None or time.monotonic() < last + 1.0):
        for message in reader.consume(1000, 0.2):
            if message.error() is None:
                values.append((message.value() or b"").decode())
        if last is None and len(values) >= count:
            last = time.monotonic()
    reader.close()
    return values


class Copier(threading.Thread):
    """Consumes `source`, and produces each record to `target` in a transaction with its offset."""

    def __init__(self, cluster: Cluster, source: str, target: str, count: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._source, self._target, self._count = source, target, count
        self.done = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._copy()
        except BaseException as failure:  # told by `join_all`, on the thread of the test
            self.failure = failure

    def _copy(self) -> None:
        reader = consumer(
            self._cluster.bootstrap,
            f"{self._source}-copiers",
            isolation_level="read_committed",
            session_timeout_ms=45_000,
        )
        reader.subscribe([self._source], on_assign=begin_at_positions)
        writer = producer(self._cluster.bootstrap, transactional_id=f"{self._source}-copier")
        writer.init_transactions(PATIENCE_S)
        deadline = time.monotonic() + 2 * PATIENCE_S
        while self.done < self._count and time.monotonic() < deadline:
            messages = [each for each in reader.consume(20, 0.2) if each.error() is None]
            if not messages:
                continue
            writer.begin_transaction()
            try:
                for message in messages:
                    writer.produce(self._target, message.value(), message.key())
                offsets = ends(messages)
                writer.send_offsets_to_transaction(
                    offsets, reader.consumer_group_metadata(), PATIENCE_S
                )
                writer.commit_transaction(PATIENCE_S)
                self.done += len(messages)
            except KafkaException as refused:
                if not refused.args[0].txn_requires_abort():
                    raise
                writer.abort_transaction(PATIENCE_S)
                # What was aborted is read again.
                for each in positions(reader, reader.assignment(), PATIENCE_S):
                    reader.seek(each)
        reader.close()

    def join_all(self) -> None:
        """Return when everything is copied; raise what went wrong."""
        self.join(4 * PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        assert self.done >= self._count


def ends(messages: list[Message]) -> list[TopicPartition]:
    """Return the offsets to commit behind these messages."""
    found: dict[tuple[str, int], int] = {}
    for message in messages:
        found[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
    return [TopicPartition(topic, index, offset) for (topic, index), offset in found.items()]


def write(cluster: Cluster, topic: str, first: int, end: int) -> None:
    """Produce numbers, and wait for all of them."""
    writer = producer(cluster.bootstrap, enable_idempotence=True)
    refused: list[object] = []
    for number in range(first, end):
        writer.produce(
            topic,
            str(number),
            str(number),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert writer.flush(2 * PATIENCE_S) == 0
    assert not refused


def test_clients_see_three_brokers_and_leaders_on_each(cluster: Cluster) -> None:
    make_topics(cluster, "spread")
    eventually(lambda: {*leaders(cluster, "spread")} == {1, 2, 3})
    write(cluster, "spread", 0, 300)
    assert sorted(map(int, read_all(cluster, "spread", 300))) == [*range(300)]


@pytest.mark.parametrize("death", ["process", "host"])
def test_a_death_loses_and_doubles_nothing(cluster: Cluster, death: str) -> None:
    source, target = f"orders-{death}", f"copies-{death}"
    make_topics(cluster, source, target)
    write(cluster, source, 0, 200)
    copier = Copier(cluster, source, target, 600)
    copier.start()
    node = cluster.nodes[2]
    if death == "process":
        node.kill_process()
    else:
        node.kill_host()
    write(cluster, source, 200, 600)
    copier.join_all()
    assert sorted(map(int, read_all(cluster, target, 600))) == [*range(600)]
    assert sorted(map(int, read_all(cluster, source, 600))) == [*range(600)]
    if death == "host":
        assert 2 not in leaders(cluster, source)
        said = node.output.count(" ready on ")
        node.spawn()
        node.await_ready(said + 1)


def test_a_clean_stop_hands_over_and_clients_see_no_error(cluster: Cluster) -> None:
    make_topics(cluster, "rolling")
    writer = producer(cluster.bootstrap, enable_idempotence=True)
    refused: list[object] = []
    number = 0
    for node in cluster.nodes.values():
        said = node.output.count(" ready on ")
        stopping = threading.Thread(target=node.stop)
        stopping.start()
        while stopping.is_alive():
            writer.produce(
                "rolling",
                str(number),
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            number += 1
            writer.poll(0.01)
        node.spawn()
        node.await_ready(said + 1)
    assert writer.flush(PATIENCE_S) == 0 and not refused
    assert sorted(map(int, read_all(cluster, "rolling", number))) == [*range(number)]
    # Each node that came back got its share of this topic, whatever it leads of others.
    share = dict.fromkeys(cluster.nodes, PARTITIONS // len(cluster.nodes))
    eventually(lambda: Counter(leaders(cluster, "rolling")) == share, PATIENCE_S)


class Committer(threading.Thread):
    """A member of a group of its own, which commits all the time."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        super().__init__()
        self.group = group
        self._consumer = consumer(cluster.bootstrap, group)
        self._consumer.subscribe(["committed"])
        self.is_done = False
        self.failures: list[KafkaException] = []
        self.count = 0

    def run(self) -> None:
        while not self._consumer.assignment():
            self._consumer.poll(0.1)
        while not self.is_done:
            try:
                self._consumer.commit(
                    offsets=[TopicPartition("committed", 0, self.count + 1)], asynchronous=False
                )
            except KafkaException as failure:
                self.failures.append(failure)
            else:
                self.count += 1
            self._consumer.poll(0.01)
        self._consumer.close()


def go_on(committers: Sequence[Committer]) -> None:
    """Return once each of them has committed some more."""
    counts = [each.count for each in committers]

    def have_all() -> bool:
        return all(each.count > was + 10 for each, was in zip(committers, counts, strict=True))

    eventually(have_all, PATIENCE_S)


def test_a_rolling_restart_fails_no_commit_of_a_group(cluster: Cluster) -> None:
    make_topics(cluster, "committed")
    committers = [Committer(cluster, f"committer-{number}") for number in range(6)]
    for each in committers:
        each.start()
    go_on(committers)
    for node in cluster.nodes.values():
        said = node.output.count(" ready on ")
        assert node.stop() == 0
        node.spawn()
        node.await_ready(said + 1)
        go_on(committers)
    for each in committers:
        each.is_done = True
    for each in committers:
        each.join(PATIENCE_S)
        assert not each.failures
        eventually(partial(has_stored, cluster, each), PATIENCE_S)


def named_by(node: Node) -> set[int]:
    """Return the nodes that this one names to its clients."""
    asked = MetadataRequest[4](topics=[], allow_auto_topic_creation=False)
    with Connection(node.address) as connection:
        return {each.node_id for each in connection.call(asked, MetadataResponse).brokers}


def listens(node: Node) -> bool:
    with suppress(ConnectionRefusedError):
        Connection(node.address).close()
        return True
    return False


def test_a_node_that_answers_is_known_to_the_others(cluster: Cluster) -> None:
    """Else a client that asks it, and then another one, gives up what it has asked of it."""
    for node in cluster.nodes.values():
        said = node.output.count(" ready on ")
        assert node.stop() == 0
        node.spawn()
        # Its answer comes as soon as it serves: before it has said that it is ready, perhaps.
        eventually(partial(listens, node))
        assert named_by(node) == {*cluster.nodes}
        for other in cluster.nodes.values():
            assert named_by(other) == {*cluster.nodes}
        node.await_ready(said + 1)


def has_stored(cluster: Cluster, committer: Committer) -> bool:
    """Return whether the offset is stored that was committed last. False: its coordinator moves."""
    reader = consumer(cluster.bootstrap, committer.group)
    try:
        (stored,) = reader.committed([TopicPartition("committed", 0)], PATIENCE_S)
    except KafkaException as failure:
        # Tried three times, while the node that came last is given its share.
        assert failure.args[0].code() in NOT_YET
        return False
    finally:
        reader.close()
    assert stored.offset == committer.count
    return True


def described(cluster: Cluster, *options: str) -> dict[str, tuple[str, str, str]]:
    """Return leader, replicas and those in sync by partition, as kafka-topics.sh prints them."""
    printed = tool_box.run(
        "TopicCommand", "--bootstrap-server", cluster.bootstrap, "--describe", *options
    )
    found = re.findall(
        r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S*)\s+Isr: (\S*)", printed
    )
    return {f"{name}-{index}": tuple(each) for name, index, *each in found}


def test_javas_tools_see_replicas_and_move_leaders(cluster: Cluster, tmp_path: Path) -> None:
    server = ("--bootstrap-server", cluster.bootstrap)
    creation = (*server, "--create", "--topic", "three", "--partitions", "6")
    tool_box.run("TopicCommand", *creation, "--replication-factor", "3")
    refused = tool_box.call(
        "TopicCommand", *(*server, "--create", "--topic", "four", "--replication-factor", "4")
    )
    assert "only 3 broker(s) are registered" in refused.output
    for leader, replicas, in_sync in described(cluster, "--topic", "three").values():
        assert replicas.split(",")[0] == leader and sorted(replicas) == sorted("1,2,3")
        assert sorted(in_sync) == sorted("1,2,3")
    assert not described(cluster, "--under-replicated-partitions")
    # What an administrator says is where each partition is to be.
    wanted = tmp_path / "wanted.json"
    lists = {"three-0": [3, 1], "three-1": [3, 2, 1], "__consumer_offsets-0": [3, 1, 2]}
    moves = [
        {"topic": name.rpartition("-")[0], "partition": int(name[-1]), "replicas": replicas}
        for name, replicas in lists.items()
    ]
    wanted.write_text(json.dumps({"version": 1, "partitions": moves}))
    file = ("--reassignment-json-file", str(wanted))
    tool_box.run("reassign.ReassignPartitionsCommand", *server, *file, "--execute")

    def are_moved() -> bool:
        verified = tool_box.run("reassign.ReassignPartitionsCommand", *server, *file, "--verify")
        return all(f"Reassignment of partition {name} is completed." in verified for name in lists)

    # The answer waits for five seconds at most.
    eventually(are_moved)
    assert described(cluster, "--topic", "three")["three-0"] == ("3", "3,1", "3,1")
    election = ("--election-type", "preferred", "--all-topic-partitions")
    tool_box.run("LeaderElectionCommand", *server, *election)
    elected = ("3", "3,2,1", "3,2,1")
    eventually(lambda: described(cluster, "--topic", "three")["three-1"] == elected)


def test_two_of_three_replicas_serve_and_the_third_leads_again(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"min.insync.replicas": "2"}
    new = NewTopic("insync", PARTITIONS, replica_assignment=[[2, 3, 1]] * PARTITIONS, config=config)
    admin.create_topics([new])["insync"].result(PATIENCE_S)
    assert leaders(cluster, "insync") == [2] * PARTITIONS
    node = cluster.nodes[2]
    node.kill_host()
    writer = producer(cluster.bootstrap, acks="all", enable_idempotence=True)
    refused: list[object] = []
    for number in range(100):
        writer.produce(
            "insync",
            str(number),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert writer.flush(PATIENCE_S) == 0 and not refused
    missing = {f"insync-{index}": ("3", "2,3,1", "3,1") for index in range(PARTITIONS)}
    topic = ("--topic", "insync")
    # Whichever node is asked.
    eventually(lambda: described(cluster, "--under-replicated-partitions", *topic) == missing)
    eventually(lambda: described(cluster, "--at-min-isr-partitions", *topic) == missing)
    # As in Kafka, whose brokers stay registered: the restart of one refuses no new topic.
    admin.create_topics([NewTopic("meanwhile", 3, 3)])["meanwhile"].result(PATIENCE_S)
    said = node.output.count(" ready on ")
    node.spawn()
    node.await_ready(said + 1)
    eventually(lambda: leaders(cluster, "insync") == [2] * PARTITIONS)
    eventually(lambda: not described(cluster, "--under-replicated-partitions"))
    assert sorted(map(int, read_all(cluster, "insync", 100))) == [*range(100)]


def test_kafka_pythons_admin_creates_replicas(cluster: Cluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    admin.create_topics([KafkaPythonTopic("replicated", 2, 2)])
    (found,) = admin.describe_topics(["replicated"])
    for one in found["partitions"]:
        assert len(one["replica_nodes"]) == len(one["isr_nodes"]) == 2
        assert one["leader_id"] in one["replica_nodes"]
    admin.create_partitions({"replicated": 4})
    (found,) = admin.describe_topics(["replicated"])
    assert [len(one["replica_nodes"]) for one in found["partitions"]] == [2] * 4
    admin.close()


def magnetar(*arguments: str) -> str:
    """Return what a command prints."""
    command = [str(MAGNETAR), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def has_said(node: Node, text: str) -> bool:
    return text in node.output


def answer(address: tuple[str, int], sent: bytes) -> bytes:
    """Return what comes from an address before it closes."""
    with socket.create_connection(address, PATIENCE_S) as connected:
        connected.sendall(sent)
        return connected.recv(4096)


def test_a_transaction_over_nodes_that_speak_tls(
    cluster: Cluster, certificates: Certificates, tmp_path: Path
) -> None:
    make_topics(cluster, "encrypted")
    assert len({*leaders(cluster, "encrypted")}) > 1
    writer = producer(cluster.bootstrap, transactional_id="encrypted")
    writer.init_transactions(PATIENCE_S)
    for committed in (True, False):
        writer.begin_transaction()
        for index in range(PARTITIONS):
            writer.produce("encrypted", f"{committed}", partition=index)
        (writer.commit_transaction if committed else writer.abort_transaction)(PATIENCE_S)
    assert read_all(cluster, "encrypted", PARTITIONS) == ["True"] * PARTITIONS
    # On the wire: plain text meets an alert of TLS, and TLS asks for a certificate.
    status = magnetar("cluster", "status", "--storage", cluster.url, "--json")
    nodes = json.loads(status)
    assert len(nodes) == len(cluster.nodes)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    for node in nodes:
        host, _, port = node["endpoints"]["peers"].rpartition(":")
        assert answer((host, int(port)), b"\0\0\0\x20" + b"x" * 32)[:2] == b"\x15\x03"
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as connected,
            context.wrap_socket(connected, server_hostname=host) as encrypted,
            suppress(ssl.SSLError),
        ):
            assert encrypted.recv(1) == b""
        listening = cluster.nodes[node["node_id"]]
        for said in ("the other side is set up for PLAINTEXT", "peer did not return a certificate"):
            eventually(partial(has_said, listening, said))
    assert "the nodes speak TLS to each other" in magnetar(
        "cluster", "doctor", "--storage", cluster.url
    )
    # A node of another authority does not come up, and says why.
    strangers = write_certificates(tmp_path)
    settings = {**cluster.settings, "ssl.keystore.location": str(strangers.server)}
    stranger = Node(4, cluster.url, tmp_path / "4", settings)
    stranger.spawn()
    assert stranger.wait() == 2
    assert "other nodes would not trust this node's certificate as that of 127.0.0.1" in (
        stranger.output
    )
