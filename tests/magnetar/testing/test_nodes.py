"""A test's cluster: its faults are of all nodes together, and each node can be ended by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from magnetar.testing import Api, Broker, BrokerGone, FaultNeverFired, start_broker

PARTITIONS = 6
VALUES = [b"value-%d" % number for number in range(PARTITIONS)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Broker]:
    with start_broker(workers=3) as broker:
        yield broker


@pytest.fixture
def broker(cluster: Broker) -> Iterator[Broker]:
    yield cluster
    cluster.reset()


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(partitions=PARTITIONS)


def leaders(broker: Broker, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found = admin.list_topics(topic, timeout=20).topics[topic].partitions
    return {index: each.leader for index, each in found.items()}


def produce(broker: Broker, topic: str, **settings: object) -> None:
    """Write one record to each partition, and so to each node."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, **settings})
    for partition, value in enumerate(VALUES):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def test_a_fault_is_of_all_nodes_and_counts_over_all_of_them(broker: Broker, topic: str) -> None:
    assert {*leaders(broker, topic).values()} == {1, 2, 3}
    failing = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, times=2, skip=1)
    produce(broker, topic, **{"retry.backoff.ms": 5})
    assert failing.wait(2) == 2
    # Of all nodes together, not of each.
    assert failing.hits == 2
    broker.assert_once(topic, VALUES)


def test_a_fault_that_no_node_meets_is_told(broker: Broker) -> None:
    with pytest.raises(FaultNeverFired), broker.lose_answer(Api.END_TXN):
        pass
    with pytest.raises(ValueError, match="Did you mean Produce"):
        broker.fail("Prodce", "NOT_ENOUGH_REPLICAS")


def test_lost_answers_and_requests_are_recorded_on_every_node(broker: Broker, topic: str) -> None:
    with broker.requests(Api.PRODUCE) as requests:
        with broker.lose_answer(Api.PRODUCE, topic=topic):
            produce(broker, topic, **{"enable.idempotence": True, "retry.backoff.ms": 5})
        seen = [each for each in requests if topic in each.topics]
    broker.assert_once(topic, VALUES)
    assert len(seen) >= 4
    # With it those that were behind it on the connection.
    assert not all(each.is_answered for each in seen)


def test_a_node_that_is_killed_is_back_with_the_faults_that_are_left(
    broker: Broker, topic: str
) -> None:
    failing = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, times=2)
    before = broker.node_pids
    broker.kill_node(2)
    after = broker.node_pids
    assert [node for node in before if before[node] != after[node]] == [2]
    produce(broker, topic, **{"retry.backoff.ms": 5})
    assert failing.wait(2) == 2
    broker.assert_once(topic, VALUES)


def test_a_node_dies_in_the_middle_of_a_commit(broker: Broker, topic: str) -> None:
    before = broker.node_pids
    dying = broker.kill_at("end_txn.decided", transactional_id="orders")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "orders"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition, value in enumerate(VALUES):
        producer.produce(topic, value, partition=partition)
    producer.commit_transaction(30)
    assert dying.wait() == 1
    assert len({*before.values()} - {*broker.node_pids.values()}) == 1
    broker.assert_once(topic, VALUES)


def test_a_node_stands_still_and_the_others_go_on(broker: Broker, topic: str) -> None:
    leader_of = leaders(broker, topic)
    still = next(index for index, leader in leader_of.items() if leader == 2)
    other = next(index for index, leader in leader_of.items() if leader == 3)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 1000}
    producer = Producer(settings)
    told: dict[int | None, bool] = {}
    with broker.frozen(node=2):
        for index in (still, other):
            producer.produce(
                topic,
                b"v",
                partition=index,
                on_delivery=lambda error, message: told.update({message.partition(): not error}),
            )
        producer.flush(30)
        assert told == {still: False, other: True}
        with pytest.raises(BrokerGone, match="stands still"):
            broker.crash_points()
    assert broker.crash_points()


def test_nodes_that_stand_still_go_on_as_their_blocks_end(broker: Broker, tmp_path: Path) -> None:
    pids = broker.node_pids
    with broker.frozen(node=1):
        with broker.frozen(node=2):
            eventually(lambda: stopped(pids) == [1, 2])
            broker.snapshot(tmp_path / "of all")
            eventually(lambda: stopped(pids) == [1, 2])
        eventually(lambda: stopped(pids) == [1])
    assert broker.node_pids == pids
    broker.freeze(1)
    broker.freeze(3)
    broker.thaw()
    eventually(lambda: stopped(pids) == [])
    # What is started in its place does not stand still.
    with broker.frozen(node=1):
        broker.kill_node(1)
        assert broker.node_pids[1] != pids[1]
        with broker.requests():
            broker.topic()


def stopped(pids: Mapping[int, int]) -> list[int]:
    """Return the nodes that stand still."""
    states = {node: Path(f"/proc/{pid}/stat").read_text() for node, pid in pids.items()}
    return [node for node, state in states.items() if state.rpartition(")")[2].split()[0] == "T"]


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # The kernel stops a process when it comes to run.


def test_groups_and_transactions_are_found_on_their_nodes(broker: Broker, topic: str) -> None:
    members = []
    for number in range(4):
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"readers-{number}"}
        members.append(Consumer(settings))
        members[-1].subscribe([topic])
        members[-1].poll(0.1)
    for number in range(4):
        assert len(broker.wait_for_group(f"readers-{number}", members=1)) == 1
    for member in members:
        member.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "late"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition, value in enumerate(VALUES):
        producer.produce(topic, value, partition=partition)
    producer.flush(30)
    broker.expire("late")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert broker.values(topic) == []
    assert len(broker.values(topic, committed=False)) == PARTITIONS
    with pytest.raises(ValueError, match="no member"):
        broker.expire(group="unknown")


def test_a_disk_that_fails_ends_nodes_and_loses_nothing(broker: Broker, topic: str) -> None:
    before = broker.node_pids
    broker.disk.fail_sync()
    produce(broker, topic, **{"enable.idempotence": True, "retry.backoff.ms": 5})
    assert {*before.values()}.isdisjoint(broker.node_pids.values())
    broker.assert_once(topic, VALUES)


def test_a_snapshot_has_what_every_node_has(broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(broker, topic)
    snapshot = broker.snapshot(tmp_path / "kept")
    produce(broker, topic)
    broker.restore(snapshot)
    broker.assert_once(topic, VALUES)
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    ends = [
        reader.get_watermark_offsets(TopicPartition(topic, index), timeout=20)[1]
        for index in range(PARTITIONS)
    ]
    reader.close()
    assert ends == [1] * PARTITIONS


@pytest.mark.magnetar(workers=2)
def test_the_fixture_is_a_cluster_where_the_marker_asks_for_one(kafka: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert sorted(admin.list_topics(timeout=20).brokers) == [1, 2]


def test_nothing_of_a_cluster_outlives_it() -> None:
    with start_broker(workers=2) as broker:
        pids = [broker.pid, *broker.node_pids.values()]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_node_that_is_not_there_is_a_mistake(broker: Broker) -> None:
    for action in (broker.kill_node, broker.freeze):
        with pytest.raises(ValueError, match="there is no node 9. The nodes are 1, 2, 3"):
            action(9)
