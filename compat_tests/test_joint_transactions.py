"""Joint transactions: stock clients whose transactional ids make them a family, PARENT~>CHILD.

Kafka has no such thing: there a child's commit commits. docs/joint_transactions.md says what holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient

from compat_tests import command_line, confluent_client, tool_box
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.offsets import committed_offset
from compat_tests.raw import Connection, Identity, batch

pytestmark = pytest.mark.magnetar_only("Kafka has one producer in a transaction")

LOOP = Path(__file__).with_name("TransactionLoop.java")
NONE, INVALID_REQUEST, CONCURRENT_TRANSACTIONS = 0, 42, 51
PARTITIONS = 3
EVERYWHERE = tuple(range(PARTITIONS))


def begun(broker: Broker, transactional_id: str) -> Producer:
    client = confluent_client.producer(
        broker.bootstrap, transactional_id=transactional_id, linger_ms=0
    )
    client.init_transactions(TIMEOUT_S)
    client.begin_transaction()
    return client


def write(client: Producer, topic: str, text: str) -> None:
    """Write one record to each partition, and wait until they are acknowledged."""
    for partition in EVERYWHERE:
        confluent_client.send(client, topic, [(None, text.encode())], partition)


def visible(broker: Broker, topic: str) -> list[list[str]]:
    """Return what a read_committed consumer finds in each partition; it must reach the end."""
    found: list[list[str]] = []
    for partition in EVERYWHERE:
        client = confluent_client.consumer(
            broker.bootstrap, isolation_level="read_committed", enable_partition_eof=True
        )
        try:
            client.assign([TopicPartition(topic, partition, 0)])
            found.append([])
            while (message := client.poll(TIMEOUT_S)) is not None:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
                found[-1].append((message.value() or b"").decode())
        finally:
            client.close()
    return found


def votes(broker: Broker, parent: str) -> list[str]:
    """Return the children of `parent` that have voted, as the command line lists them."""
    listed = command_line.printed(
        broker, "transactions", "list", "--state", "Voted", "--pattern", f"{parent}~>.*"
    )
    return [each["transactional_id"] for each in listed]


def test_votes_become_visible_with_the_parents_offsets_and_not_before(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, parent, group = topic("orders", partitions=PARTITIONS), name("parent"), name("group")
    children = [f"{parent}~>{number}" for number in range(8)]
    for child in children:
        client = begun(broker, child)
        write(client, orders, child)
        client.commit_transaction(TIMEOUT_S)
    assert visible(broker, orders) == [[]] * PARTITIONS
    assert votes(broker, parent) == children
    driver = begun(broker, parent)
    metadata = confluent_client.consumer(broker.bootstrap, group).consumer_group_metadata()
    driver.send_offsets_to_transaction([TopicPartition(orders, 0, 7)], metadata, TIMEOUT_S)
    assert visible(broker, orders) == [[]] * PARTITIONS
    driver.commit_transaction(TIMEOUT_S)
    assert visible(broker, orders) == [children] * PARTITIONS
    assert committed_offset(broker.bootstrap, group, orders) == 7
    assert votes(broker, parent) == []


def test_clients_that_know_nothing_of_votes_list_and_describe_them(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """kafka-python's reader refuses a state that Kafka does not have."""
    orders, child = topic("orders", partitions=PARTITIONS), f"{name('parent')}~>1"
    client = begun(broker, child)
    write(client, orders, "a")
    client.commit_transaction(TIMEOUT_S)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        listed = {
            each.transactional_id: each.state
            for found in admin.list_transactions().values()
            for each in found
        }
        described = admin.describe_transactions([child])[child]
    finally:
        admin.close()
    assert listed[child].value == described.state.value == "Ongoing"
    shown = tool_box.run(
        "TransactionsCommand",
        *("--bootstrap-server", broker.bootstrap, "describe", "--transactional-id", child),
    )
    assert "Ongoing" in shown


def test_the_parents_abort_aborts_the_votes_and_fences_who_gave_them(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, parent = topic("orders", partitions=PARTITIONS), name("parent")
    child = begun(broker, f"{parent}~>1")
    write(child, orders, "never")
    child.commit_transaction(TIMEOUT_S)
    driver = begun(broker, parent)
    write(driver, orders, "never")
    driver.abort_transaction(TIMEOUT_S)
    assert visible(broker, orders) == [[]] * PARTITIONS
    child.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        write(child, orders, "never")
        child.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError._PURGE_QUEUE)
    # A new incarnation goes on, and so does the parent.
    again = begun(broker, f"{parent}~>1")
    write(again, orders, "again")
    again.commit_transaction(TIMEOUT_S)
    driver.begin_transaction()
    write(driver, orders, "decided")
    driver.commit_transaction(TIMEOUT_S)
    assert visible(broker, orders) == [["again", "decided"]] * PARTITIONS


def test_a_vote_behind_the_seal_is_refused_and_aborted(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, parent = topic("orders", partitions=PARTITIONS), name("parent")
    late = begun(broker, f"{parent}~>late")
    write(late, orders, "late")
    driver = begun(broker, parent)
    write(driver, orders, "decided")
    with pytest.raises(KafkaException) as refused:
        late.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    driver.commit_transaction(TIMEOUT_S)
    assert visible(broker, orders) == [["decided"]] * PARTITIONS


def test_kafkas_own_client_votes_decides_aborts_and_is_late(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """Version 2: every vote bumps the epoch, with which the next transaction goes on."""
    source, sink = topic("source"), topic("sink")
    arguments = ("joint", broker.bootstrap, source, sink, name("java"), "12")
    found = tool_box.run(str(LOOP), *arguments, timeout_s=4 * TIMEOUT_S)
    expected = [f"first-{number}" for number in range(12)] + ["decided", "alone"]
    assert found.strip().split(",") == expected


def test_a_thousand_children_are_decided_at_once(
    broker: Broker, connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, parent = topic("orders", partitions=PARTITIONS), name("parent")
    for number in range(1000):
        child = connection.producer(f"{parent}~>{number}", version=5)
        assert vote(connection, child, orders, (number % PARTITIONS,)) == NONE
    assert len(votes(broker, parent)) == 1000
    ends = [connection.list_offset(orders, -1, partition=each)[2] for each in EVERYWHERE]
    driver = connection.producer(parent, version=5)
    assert send(connection, driver, orders, 0) == NONE
    assert connection.end(driver, commit=True, version=5).error_code == NONE
    for partition in EVERYWHERE:
        stable = connection.list_offset(orders, -1, partition=partition, isolation=1)[2]
        is_parents = partition == 0
        assert stable == 2 * ends[partition] + 2 * is_parents
    assert votes(broker, parent) == []


def send(connection: Connection, who: Identity, topic: str, partition: int) -> int:
    records = batch([b"v"], who, 0)
    return connection.produce(
        topic, records, partition=partition, transactional_id=who.transactional_id, version=12
    ).error_code


def vote(connection: Connection, who: Identity, topic: str, partitions: tuple[int, ...]) -> int:
    codes = {send(connection, who, topic, partition) for partition in partitions}
    return max(codes | {connection.end(who, commit=True, version=5).error_code})


@pytest.mark.parametrize("child", ["~>b~>c", "~>", "~>\0"])
def test_an_id_that_is_neither_child_nor_plain_is_refused(
    child: str, connection: Connection, name: MakeName
) -> None:
    code, _ = connection.init_producer_id(name("parent") + child)
    assert code == INVALID_REQUEST


def test_votes_seal_and_decision_outlive_a_broker_that_is_killed(
    start_broker: StartBroker, name: MakeName
) -> None:
    broker, parent, orders = start_broker("magnetar"), name("parent"), name("orders")
    create_topic(broker.bootstrap, orders, partitions=PARTITIONS)
    with Connection(broker.bootstrap) as connection:
        children = [connection.producer(f"{parent}~>{number}", version=5) for number in range(2)]
        for child in children:
            assert vote(connection, child, orders, EVERYWHERE) == NONE
    broker.kill()
    broker.start()
    assert votes(broker, parent) == [f"{parent}~>0", f"{parent}~>1"]
    with Connection(broker.bootstrap) as connection:
        assert connection.end(children[0], commit=True, version=5).error_code == NONE
        driver = connection.producer(parent, version=5)
        assert send(connection, driver, orders, 0) == NONE
    broker.kill()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        late = connection.producer(f"{parent}~>late", version=5)
        assert send(connection, late, orders, 0) == CONCURRENT_TRANSACTIONS  # sealed
        assert connection.end(driver, commit=True, version=5).error_code == NONE
    broker.kill()
    broker.start()
    assert visible(broker, orders) == [["v"] * 3, ["v"] * 2, ["v"] * 2]
    with Connection(broker.bootstrap) as connection:
        assert connection.end(driver, commit=True, version=5).error_code == NONE
        assert connection.end(children[1], commit=True, version=5).error_code == NONE
