"""Consumer groups of `group.protocol=consumer` (KIP-848): librdkafka and Java, alone and together.

Members join, leave, are killed, restart, subscribe by pattern; groups are migrated from and to the
classic protocol while their members run; the broker is killed under them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from compat_tests import confluent_client, java, tool_box
from compat_tests.admin import create_topic
from compat_tests.assignments import PARTITIONS, await_partitions, settle
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT
from compat_tests.config_frames import GROUP, SET, alter
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.consumer_group_frames import ConsumerMember
from compat_tests.offsets import check_the_next_member_goes_on, committed_offset

EVERYTHING = {0, 1, 2, 3}
Join = Callable[..., Consumer]


@pytest.fixture
def orders(topic: MakeTopic) -> str:
    return topic("orders", PARTITIONS)


@pytest.fixture
def group(name: MakeName) -> str:
    return name("group")


def member(broker: Broker, group: str, *topics: str, **settings: Any) -> Consumer:
    """Return a consumer of the new protocol that subscribes to `topics`."""
    protocol = {"group_protocol": "consumer", **settings}
    client = confluent_client.consumer(broker.bootstrap, group, **protocol)
    client.subscribe(list(topics))
    return client


def classic_member(broker: Broker, group: str, topic: str) -> Consumer:
    client = confluent_client.consumer(
        broker.bootstrap,
        group,
        group_protocol="classic",
        partition_assignment_strategy="range",
        session_timeout_ms=30_000,
        heartbeat_interval_ms=200,
    )
    client.subscribe([topic])
    return client


@pytest.fixture
def join(broker: Broker, group: str, orders: str) -> Iterator[Join]:
    """Make members that read orders, or the topics named; closed at the end of the test."""
    with ExitStack() as stack:

        def make(*topics: str, classic: bool = False, **settings: Any) -> Consumer:
            client = (
                classic_member(broker, group, orders)
                if classic
                else member(broker, group, *(topics or (orders,)), **settings)
            )
            stack.callback(client.close)
            return client

        yield make


def group_type(broker: Broker, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups().result(TIMEOUT_S).valid
    (found,) = (each.type for each in listed if each.group_id == group)
    assert isinstance(found, ConsumerGroupType)
    return found


def test_members_join_and_leave_one_after_the_other(join: Join) -> None:
    first = join()
    assert settle(first) == [EVERYTHING]
    second, third = join(), join()
    assert sorted(len(each) for each in settle(first, second, third)) == [1, 1, 2]
    second.close()
    assert [len(each) for each in settle(first, third)] == [2, 2]
    third.close()
    assert settle(first) == [EVERYTHING]


def test_a_static_member_comes_back_to_its_partitions(join: Join) -> None:
    first, second = join(group_instance_id="one"), join(group_instance_id="two")
    before = settle(first, second)
    second.close()
    for _ in range(10):
        first.poll(0.02)
    assert {place.partition for place in first.assignment()} == before[0]
    second = join(group_instance_id="two")
    assert settle(first, second) == before


def end_sessions_soon(broker: Broker, group: str) -> None:
    change = ("consumer.session.timeout.ms", SET, "3000")
    assert alter(broker, group, change, resource_type=GROUP) == 0


def test_a_member_that_dies_is_replaced_when_its_session_ends(
    broker: Broker, group: str, orders: str, join: Join
) -> None:
    end_sessions_soon(broker, group)
    first = join()
    settle(first)
    other = java.start(
        "VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", orders, "--group-id", group),
        *("--group-protocol", "consumer"),
    )
    try:
        await_partitions(first, PARTITIONS // 2)
    finally:
        other.kill()
    assert settle(first) == [EVERYTHING]


def test_a_pattern_reads_topics_that_come_later(broker: Broker, name: MakeName, join: Join) -> None:
    prefix = name("pattern")
    create_topic(broker.bootstrap, f"{prefix}-a", 2)
    first = join(f"^{prefix}-.*")
    settle(first, partitions=2)
    create_topic(broker.bootstrap, f"{prefix}-b", 3)
    await_partitions(first, 5)


def test_offsets_are_committed_and_found_by_the_next_member(
    broker: Broker, group: str, orders: str, join: Join
) -> None:
    check_the_next_member_goes_on(broker.bootstrap, group, orders, join)


def test_members_commit_in_transactions_while_they_are_members(
    broker: Broker, group: str, orders: str, join: Join, name: MakeName
) -> None:
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"%d" % n) for n in range(10)])
    first = join()
    settle(first)
    metadata = first.consumer_group_metadata()
    producer = confluent_client.producer(broker.bootstrap, transactional_id=name("tx"))
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(orders, 0, 4)], metadata, TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert committed_offset(broker.bootstrap, group, orders) == 4
    settle(first, join())
    first.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(orders, 0, 5)], metadata, TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    producer.abort_transaction(TIMEOUT_S)
    assert committed_offset(broker.bootstrap, group, orders) == 4


def test_a_java_consumer_reads_and_its_group_is_described(
    broker: Broker, group: str, orders: str
) -> None:
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"%d" % n) for n in range(20)])
    printed = tool_box.run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", orders, "--from-beginning"),
        *("--command-property", "group.protocol=consumer", "--group", group),
        *("--max-messages", "20", "--timeout-ms", "60000"),
    )
    assert printed.split() == [str(n) for n in range(20)]
    described = tool_box.run(
        "consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--group", group),
    )
    (row,) = [line.split() for line in described.splitlines() if line.split()[2:3] == ["0"]]
    assert row[:6] == [group, orders, "0", "20", "20", "0"]


def test_a_group_is_migrated_to_the_consumer_protocol_and_back(
    broker: Broker, group: str, join: Join
) -> None:
    classic = join(classic=True)
    assert settle(classic) == [EVERYTHING]
    assert group_type(broker, group) is ConsumerGroupType.CLASSIC
    consumer = join()
    assert [len(each) for each in settle(classic, consumer)] == [2, 2]
    assert group_type(broker, group) is ConsumerGroupType.CONSUMER
    classic.close()
    assert settle(consumer) == [EVERYTHING]
    assert group_type(broker, group) is ConsumerGroupType.CONSUMER
    classic = join(classic=True)
    assert [len(each) for each in settle(consumer, classic)] == [2, 2]
    consumer.close()
    assert settle(classic) == [EVERYTHING]
    assert group_type(broker, group) is ConsumerGroupType.CLASSIC


def test_members_keep_their_partitions_while_the_broker_is_killed(
    own_broker: Broker, group: str, topic_on: MakeTopic
) -> None:
    orders = topic_on(own_broker, "orders", PARTITIONS)
    with ExitStack() as stack:
        members = []
        for _ in range(2):
            members.append(member(own_broker, group, orders))
            stack.callback(members[-1].close)
        before = settle(*members)
        epochs = described_epochs(own_broker, group)
        own_broker.kill()
        own_broker.start()
        CONFLUENT.produce(own_broker.bootstrap, orders, [(b"k", b"v")] * 20)
        read = 0
        deadline = time.monotonic() + TIMEOUT_S
        while read < 20:
            for each in members:
                message = each.poll(0.02)
                read += message is not None and message.error() is None
            assert time.monotonic() < deadline, f"read {read}"
        assert settle(*members) == before
        assert described_epochs(own_broker, group) == epochs


def described_epochs(broker: Broker, group: str) -> tuple[int, int]:
    """Return the group's epoch and the assignment's."""
    with ConsumerMember(broker.bootstrap, group) as onlooker:
        described = onlooker.described()
    assert described.group_state == "Stable"
    return described.group_epoch, described.assignment_epoch
