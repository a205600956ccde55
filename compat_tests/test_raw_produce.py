"""Idempotent and transactional Produce, request by request: duplicates, gaps, epochs, unadded
partitions.
"""

from __future__ import annotations

import time

import pytest
from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.raw import Connection, Identity, batch
from compat_tests.waiting import eventually

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_RECORD = 87
TRANSACTION_ABORTABLE = 120
PRODUCER_FENCED = 90


def test_a_duplicate_is_answered_with_its_original_offset(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(None)
        offsets = [
            connection.produce(orders, batch([b"v"] * 3, identity, 3 * n)).base_offset
            for n in range(6)
        ]
        assert offsets == [0, 3, 6, 9, 12, 15]
        for n in range(1, 6):
            answer = connection.produce(orders, batch([b"v"] * 3, identity, 3 * n))
            assert (answer.error_code, answer.base_offset) == (0, offsets[n])


def test_a_gap_in_the_sequence_is_refused(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(None)
        assert connection.produce(orders, batch([b"a"], identity, 0)).error_code == 0
        answer = connection.produce(orders, batch([b"c"], identity, 2))
        assert answer.error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert connection.produce(orders, batch([b"b"], identity, 1)).base_offset == 1


def test_an_older_epoch_is_refused_by_the_partition(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        old = connection.producer(None)
        new = Identity(None, old.producer_id, old.producer_epoch + 1)
        assert connection.produce(orders, batch([b"a"], new, 0)).error_code == 0
        answer = connection.produce(orders, batch([b"b"], old, 1))
        assert answer.error_code == INVALID_PRODUCER_EPOCH


def test_a_batch_without_a_sequence_is_refused_before_its_transaction_is_looked_at(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        known = connection.producer(name("txn"))
        assert connection.add_partitions(known, orders) == [0]
        unknown = Identity(known.transactional_id, 999_999, 0)
        # Kafka looks at the transaction first.
        for identity, kafka in ((known, INVALID_RECORD), (unknown, INVALID_PRODUCER_ID_MAPPING)):
            records = batch([b"v"], identity, -1)
            answer = connection.produce(orders, records, transactional_id=identity.transactional_id)
            assert answer.error_code == (kafka if broker.kind == "kafka" else INVALID_RECORD)


def test_a_silent_producer_is_forgotten_at_the_next_check(
    broker_kind: str, start_broker: StartBroker
) -> None:
    settings = {
        "producer.id.expiration.ms": "5000",
        "producer.id.expiration.check.interval.ms": "100",
    }
    broker = start_broker(broker_kind, settings)
    create_topic(broker.bootstrap, "orders")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(None)
        began_s = time.monotonic()
        # Kafka counts from the timestamp of the batch, which is this moment.
        assert connection.produce("orders", batch([b"a"], identity, 0)).error_code == 0
        assert producer_ids(connection, "orders") == [identity.producer_id]
        eventually(lambda: not producer_ids(connection, "orders"))
        assert time.monotonic() - began_s > 4.9


def producer_ids(connection: Connection, topic: str) -> list[int]:
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    request = DescribeProducersRequest[0](topics=[asked])
    ((partition,),) = [
        each.partitions for each in connection.call(request, DescribeProducersResponse).topics
    ]
    return [each.producer_id for each in partition.active_producers]


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, INVALID_TXN_STATE), (8, INVALID_TXN_STATE), (10, INVALID_TXN_STATE)]
    + [(11, TRANSACTION_ABORTABLE)],
)
def test_a_transactional_batch_needs_its_partition_added(
    broker: Broker, topic: MakeTopic, name: MakeName, version: int, code: int
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(transactional_id)
        answer = connection.produce(
            orders,
            batch([b"a"], identity, 0),
            transactional_id=transactional_id,
            version=version,
        )
        assert answer.error_code == code
        assert connection.fetch(orders, 0).high_watermark == 0


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, INVALID_TXN_STATE), (3, INVALID_TXN_STATE), (4, TRANSACTION_ABORTABLE)],
)
def test_transactional_offsets_need_their_group_added(
    broker: Broker, topic: MakeTopic, name: MakeName, version: int, code: int
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        answer = connection.txn_offset_commit(identity, name("group"), orders, 1, version=version)
        assert answer == code


@pytest.mark.parametrize("version", [3, 9, 11])
def test_a_zombie_is_fenced_at_the_partition(
    broker: Broker, topic: MakeTopic, name: MakeName, version: int
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        zombie = connection.producer(transactional_id)
        connection.write_in_transaction(zombie, orders, b"a")
        connection.producer(transactional_id)
        late = connection.produce(
            orders, batch([b"b"], zombie, 1), transactional_id=transactional_id, version=version
        )
        assert late.error_code == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, INVALID_PRODUCER_EPOCH), (1, INVALID_PRODUCER_EPOCH)]
    + [(2, PRODUCER_FENCED), (4, PRODUCER_FENCED)],
)
def test_a_zombie_is_fenced_at_the_coordinator(
    broker: Broker, topic: MakeTopic, name: MakeName, version: int, code: int
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        zombie = connection.producer(transactional_id)
        assert connection.add_partitions(zombie, orders) == [0]
        connection.producer(transactional_id)
        assert connection.end(zombie, commit=True, version=version).error_code == code
        assert connection.add_partitions(zombie, orders, version=min(version, 3)) == [code]


def test_the_retry_of_an_ended_transaction_succeeds(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(transactional_id)
        for sequence, commit in ((0, True), (1, False)):
            connection.write_in_transaction(identity, orders, b"a", sequence=sequence)
            assert connection.end(identity, commit=commit).error_code == 0
            assert connection.end(identity, commit=commit).error_code == 0
            assert connection.end(identity, commit=not commit).error_code == INVALID_TXN_STATE


@pytest.mark.magnetar_only("Kafka answers before the markers are written")
def test_when_commit_has_returned_everyone_sees_it(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(transactional_id)
        for sequence in range(50):
            connection.write_in_transaction(identity, orders, b"a", sequence=sequence)
            assert connection.end(identity, commit=True).error_code == 0
            seen = connection.fetch(orders, 0, isolation=1)
            assert seen.last_stable_offset == seen.high_watermark == 2 * (sequence + 1)
