"""Consumer groups: join, leave, kill, static members, eager and cooperative, committed offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests import confluent_client, java, kafka_python_client
from compat_tests.assignments import PARTITIONS, await_partitions, settle
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.offsets import check_the_next_member_goes_on, committed_offset

SESSION_MS = 30_000
Join = Callable[..., Consumer]


@pytest.fixture
def join(broker: Broker) -> Iterator[Join]:
    """Make consumers that subscribe; closed at the end of the test."""
    with ExitStack() as stack:

        def make(group: str, topic: str, **settings: Any) -> Consumer:
            defaults = {
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": 200,
                "max_poll_interval_ms": 40_000,
            }
            client = confluent_client.consumer(broker.bootstrap, group, **{**defaults, **settings})
            stack.callback(client.close)
            client.subscribe([topic])
            return client

        yield make


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_join_and_leave(
    topic: MakeTopic, name: MakeName, join: Join, strategy: str
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    first = join(group, orders, partition_assignment_strategy=strategy)
    assert settle(first) == [{0, 1, 2, 3}]
    second = join(group, orders, partition_assignment_strategy=strategy)
    assert [len(each) for each in settle(first, second)] == [2, 2]
    second.close()
    assert settle(first) == [{0, 1, 2, 3}]


def test_a_member_that_dies_is_replaced_when_its_session_ends(
    broker: Broker, topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    first = join(group, orders)
    with_child = java_member(broker, group, orders)
    try:
        await_partitions(first, PARTITIONS // 2)
    finally:
        with_child.kill()
    assert settle(first) == [{0, 1, 2, 3}]


def java_member(broker: Broker, group: str, topic: str) -> Any:
    """A VerifiableConsumer in a process of its own, to be killed."""
    return java.start(
        "VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", group),
        *("--group-protocol", "classic", "--session-timeout", "6000"),
        *("--assignment-strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
    )


def test_a_static_member_comes_back_without_a_rebalance(
    topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    first = join(group, orders, group_instance_id="one")
    second = join(group, orders, group_instance_id="two")
    before = settle(first, second)
    second.close()
    for _ in range(10):
        first.poll(0.05)
    assert {each.partition for each in first.assignment()} == before[0]
    second = join(group, orders, group_instance_id="two")
    assert settle(first, second) == before


def test_two_of_one_instance_cannot_be_members(
    topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    old = join(group, orders, group_instance_id="only")
    settle(old)
    new = join(group, orders, group_instance_id="only")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        new.poll(0.05)
        message = old.poll(0.05)
        error = message.error() if message is not None else None
        if error is not None and error.code() in (
            KafkaError.FENCED_INSTANCE_ID,
            KafkaError._FATAL,
        ):
            break
        assert time.monotonic() < deadline, "the old member was not fenced"


def test_offsets_are_committed_and_found_by_the_next_member(
    broker: Broker, topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders"), name("group")
    check_the_next_member_goes_on(broker.bootstrap, group, orders, lambda: join(group, orders))


def test_a_commit_of_an_older_generation_is_refused(
    broker: Broker, topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders", 1), name("group")
    member = join(group, orders)
    settle(member, partitions=1)
    outsider = confluent_client.consumer(broker.bootstrap, group)
    with pytest.raises(KafkaException) as refused:
        outsider.commit(offsets=[TopicPartition(orders, 0, 4)], asynchronous=False)
    outsider.close()
    assert refused.value.args[0].code() in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    )
    assert committed_offset(broker.bootstrap, group, orders) == -1001


def test_clients_of_different_libraries_share_a_group(
    broker: Broker, topic: MakeTopic, name: MakeName, join: Join
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    first = join(group, orders, partition_assignment_strategy="range")
    settle(first)
    second = kafka_python_client.consumer(
        broker.bootstrap,
        group_id=group,
        heartbeat_interval_ms=200,
        max_poll_interval_ms=60_000,
    )
    try:
        kafka_python_client.subscribe(second, orders)
        deadline = time.monotonic() + TIMEOUT_S
        owned = [0, 0]
        while owned != [2, 2]:
            first.poll(0.05)
            second.poll(timeout_ms=50)
            owned = [len(first.assignment()), len(second.assignment())]
            assert time.monotonic() < deadline, owned
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert len(described.members) == 2
    finally:
        second.close()
    assert settle(first) == [{0, 1, 2, 3}]
