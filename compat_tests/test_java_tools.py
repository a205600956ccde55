"""Kafka's own command line programs against the broker: what an operator or a system test would
run.
"""

from __future__ import annotations

import json

import pytest

from compat_tests import java, tool_box
from compat_tests.brokers import Broker
from compat_tests.clients import CONFLUENT, KAFKA_PYTHON
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.transaction_ends import await_markers
from compat_tests.waiting import eventually
from tools.reference_kafka import OLDER, REFERENCE, Jars


def test_topics_are_created_described_and_deleted(broker: Broker, name: MakeName) -> None:
    orders = name("orders")
    server = ("--bootstrap-server", broker.bootstrap)
    tool_box.run("TopicCommand", *server, "--create", "--topic", orders, "--partitions", "3")
    eventually(lambda: orders in tool_box.run("TopicCommand", *server, "--list").split())
    described = tool_box.run("TopicCommand", *server, "--describe", "--topic", orders)
    assert "PartitionCount: 3" in described
    tool_box.run("TopicCommand", *server, "--delete", "--topic", orders)
    eventually(lambda: orders not in tool_box.run("TopicCommand", *server, "--list").split())


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_producer_performance_writes_what_it_says(
    broker: Broker, topic: MakeTopic, name: MakeName, transactional: bool
) -> None:
    orders = topic("orders")
    more = ("--transactional-id", name("txn"), "--transaction-duration-ms", "100")
    tool_box.run(
        "ProducerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", orders, "--num-records", "5000"),
        *("--record-size", "200", "--throughput", "-1", "--command-property", "acks=all"),
        *(more if transactional else ()),
    )
    await_markers(broker, orders)
    assert len(CONFLUENT.consume(broker.bootstrap, orders)) == 5000


@pytest.mark.parametrize(
    ("clients", "protocol"),
    [(OLDER, "classic"), (REFERENCE, "classic"), (REFERENCE, "consumer")],
    ids=["4.3.1-classic", "4.4.0-classic", "4.4.0-consumer"],
)
def test_the_verifiable_pair_agrees_and_its_group_is_deleted(
    broker: Broker, topic: MakeTopic, name: MakeName, clients: Jars, protocol: str
) -> None:
    orders, group = topic("orders"), name("group")
    server = ("--bootstrap-server", broker.bootstrap, "--topic", orders)
    # It is done when its JVM ends.
    printed = java.run(
        "VerifiableProducer",
        *(*server, "--max-messages", "500", "--acks", "-1"),
        clients=clients,
    )
    sent = [json.loads(line) for line in printed.splitlines() if "producer_send_success" in line]
    assert [each["offset"] for each in sent] == list(range(500))
    printed = tool_box.run(
        "VerifiableConsumer",
        *server,
        *("--group-id", group, "--group-protocol", protocol, "--max-messages", "500"),
        *("--reset-policy", "earliest", "--verbose"),
        clients=clients,
    )
    read = [json.loads(line) for line in printed.splitlines() if "record_data" in line]
    assert [each["value"] for each in read] == [each["value"] for each in sent]
    # The group is there, without members; the other one is not.
    missing = name("missing")
    deletion = ("--bootstrap-server", broker.bootstrap, "--delete")
    printed = tool_box.run(
        "consumer.group.ConsumerGroupCommand",
        *(*deletion, "--group", group, "--group", missing),
        clients=clients,
    )
    failed, deleted = printed.split("successfully")
    assert f"'{missing}'" in failed
    assert "GroupIdNotFoundException" in failed
    assert f"'{group}'" in deleted


def test_javas_transactional_copier_copies_exactly_once(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """Consume, process, produce in Java, with the group's generation, and some random aborts."""
    source, sink = topic("source"), topic("sink")
    KAFKA_PYTHON.produce(broker.bootstrap, source, [(b"k", b"%d" % n) for n in range(1000)])
    tool_box.run(
        "TransactionalMessageCopier",
        *("--broker-list", broker.bootstrap, "--input-topic", source, "--input-partition", "0"),
        *("--output-topic", sink, "--consumer-group", name("group")),
        *("--transactional-id", name("txn"), "--transaction-size", "90"),
        *("--max-messages", "1000", "--enable-random-aborts", "--group-mode"),
        "--use-group-metadata",
    )
    await_markers(broker, sink)
    seen = [value for _, _, value in CONFLUENT.consume(broker.bootstrap, sink)]
    assert seen == [b"%d" % n for n in range(1000)]
