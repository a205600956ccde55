"""Transactions as clients live them: commit, abort, fencing, timeout, and who sees what."""

from __future__ import annotations

import time

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka.errors import InvalidProducerEpochError
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from compat_tests import aiokafka_client, confluent_client, kafka_python_client
from compat_tests.admin import delete_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S, Client, Pair
from compat_tests.clients import CLIENTS, CONFLUENT, JAVA, PYTHON_CLIENTS, client_name
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.raw import Connection, batch
from compat_tests.transaction_ends import await_markers
from compat_tests.waiting import eventually

PAIRS: list[Pair] = [(f"k{n}".encode(), f"v{n}".encode()) for n in range(10)]


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_an_aborted_transaction_is_seen_by_nobody_who_reads_committed(
    broker: Broker, topic: MakeTopic, client: Client
) -> None:
    orders = topic("orders")
    client.produce(broker.bootstrap, orders, PAIRS, mode="transactional", commit=False)
    client.produce(broker.bootstrap, orders, PAIRS[:3], mode="transactional", commit=True)
    readers = CLIENTS if client is CONFLUENT else PYTHON_CLIENTS
    for reader in readers:
        seen = reader.consume(broker.bootstrap, orders)
        assert [(key, value) for _, key, value in seen] == PAIRS[:3], reader.name
    everything = client.consume(broker.bootstrap, orders, "read_uncommitted")
    assert [(key, value) for _, key, value in everything] == PAIRS + PAIRS[:3]


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_a_topic_of_nothing_but_aborted_records_ends(
    broker: Broker, topic: MakeTopic, client: Client
) -> None:
    orders = topic("orders")
    for _ in range(3):
        client.produce(broker.bootstrap, orders, PAIRS, mode="transactional", commit=False)
    assert client.consume(broker.bootstrap, orders) == []


def test_one_transaction_over_many_partitions_is_one(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    topics = [topic(f"part-{n}") for n in range(4)]
    client = confluent_client.producer(broker.bootstrap, transactional_id=name("txn"))
    client.init_transactions(TIMEOUT_S)
    for commit in (False, True):
        client.begin_transaction()
        for each in topics:
            confluent_client.send(client, each, [(b"k", str(commit).encode())])
        for each in topics:
            assert CONFLUENT.consume(broker.bootstrap, each) == []
        if commit:
            client.commit_transaction(TIMEOUT_S)
        else:
            client.abort_transaction(TIMEOUT_S)
    await_markers(broker, *topics)
    for each in topics:
        assert [value for _, _, value in CONFLUENT.consume(broker.bootstrap, each)] == [b"True"]


def test_plain_records_behind_an_open_transaction_wait(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    client = confluent_client.producer(broker.bootstrap, transactional_id=name("txn"))
    client.init_transactions(TIMEOUT_S)
    client.begin_transaction()
    confluent_client.send(client, orders, PAIRS[:1])
    CONFLUENT.produce(broker.bootstrap, orders, PAIRS[1:2])
    assert CONFLUENT.consume(broker.bootstrap, orders) == []
    assert len(CONFLUENT.consume(broker.bootstrap, orders, "read_uncommitted")) == 2
    client.commit_transaction(TIMEOUT_S)
    await_markers(broker, orders)
    seen = CONFLUENT.consume(broker.bootstrap, orders)
    assert [(key, value) for _, key, value in seen] == PAIRS[:2]


def test_a_new_incarnation_fences_the_old_one(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    old = confluent_client.producer(broker.bootstrap, transactional_id=transactional_id)
    old.init_transactions(TIMEOUT_S)
    old.begin_transaction()
    confluent_client.send(old, orders, [(b"k", b"old")])
    new = confluent_client.producer(broker.bootstrap, transactional_id=transactional_id)
    new.init_transactions(TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal()
    new.begin_transaction()
    confluent_client.send(new, orders, [(b"k", b"new")])
    new.commit_transaction(TIMEOUT_S)
    await_markers(broker, orders)
    assert [value for _, _, value in CONFLUENT.consume(broker.bootstrap, orders)] == [b"new"]


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_a_transactional_id_moves_from_client_to_client(
    broker: Broker, topic: MakeTopic, name: MakeName, client: Client
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    for writer in (CONFLUENT, client, CONFLUENT):
        writer.produce(
            broker.bootstrap,
            orders,
            [(b"k", writer.name.encode())],
            mode="transactional",
            transactional_id=transactional_id,
        )
    seen = [value for _, _, value in JAVA.consume(broker.bootstrap, orders)]
    assert seen == [b"confluent", client.name.encode(), b"confluent"]


def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    transactional_id = name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(transactional_id, timeout_ms=4000)
        began_at = time.monotonic()
        connection.write_in_transaction(identity, orders, b"late")
        while True:
            seen = connection.fetch(orders, 0, isolation=1, max_wait_ms=50)
            waited = time.monotonic() - began_at
            if seen.last_stable_offset == seen.high_watermark == 2:
                break
            assert waited < TIMEOUT_S
        assert waited > 3.9
        assert connection.end(identity, commit=True).error_code in (47, 90)
        answer = connection.produce(
            orders, batch([b"later"], identity, 1), transactional_id=transactional_id
        )
        assert answer.error_code == 47
    assert CONFLUENT.consume(broker.bootstrap, orders) == []


def test_kafka_python_tells_that_it_committed_what_the_broker_had_aborted(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """As docs/clients.md says, with either broker: the timeout is over before the last record."""
    orders = topic("orders")
    writer = kafka_python_client.producer(
        broker.bootstrap, transactional_id=name("txn"), transaction_timeout_ms=4000
    )
    writer.init_transactions()
    writer.begin_transaction()
    kafka_python_client.send(writer, orders, PAIRS[:1])
    with Connection(broker.bootstrap) as connection:
        # The record, and the marker that aborts.
        eventually(lambda: connection.list_offset(orders, -1, isolation=1)[2] == 2)
    late = writer.send(orders, *reversed(PAIRS[1]), partition=0)
    writer.commit_transaction()
    with pytest.raises(InvalidProducerEpochError):
        late.get(TIMEOUT_S)
    writer.close()
    assert CONFLUENT.consume(broker.bootstrap, orders) == []


def test_a_transaction_timeout_above_the_limit_is_refused(broker: Broker, name: MakeName) -> None:
    with Connection(broker.bootstrap) as connection:
        code, _ = connection.init_producer_id(name("txn"), timeout_ms=900_001)
    assert code == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_topic_that_goes_in_mid_transaction_takes_nobody_along(
    broker: Broker, topic: MakeTopic, commit: bool, name: MakeName
) -> None:
    stays, goes = topic("stays"), topic("goes")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        for orders in (stays, goes):
            connection.write_in_transaction(identity, orders, b"v")
        delete_topic(broker.bootstrap, goes)
        assert connection.end(identity, commit=commit).error_code == 0
        deadline = time.monotonic() + TIMEOUT_S
        while connection.fetch(stays, 0, isolation=1).last_stable_offset < 2:
            assert time.monotonic() < deadline, "the other topic has no marker"
            time.sleep(0.02)
        assert len(CONFLUENT.consume(broker.bootstrap, stays)) == (1 if commit else 0)
        # The producer goes on.
        assert connection.add_partitions(identity, stays) == [0]
        assert connection.end(identity, commit=True).error_code == 0


def test_an_empty_transactional_id_is_refused_and_a_very_long_one_is_served(broker: Broker) -> None:
    request = InitProducerIdRequest[4](transactional_id="", transaction_timeout_ms=1000)
    with Connection(broker.bootstrap) as connection:
        answer = connection.call(request, InitProducerIdResponse)
        assert answer.error_code == KafkaError.INVALID_REQUEST
        assert connection.init_producer_id("x" * 32_000)[0] == 0


def test_kafka_python_is_told_where_its_records_went(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    client = kafka_python_client.producer(broker.bootstrap, transactional_id=name("txn"))
    client.init_transactions()
    for first in (0, 4):
        client.begin_transaction()
        assert kafka_python_client.send(client, orders, PAIRS[:3]) == [first, first + 1, first + 2]
        client.commit_transaction()
    client.close()


def test_every_idempotent_client_gets_a_producer_id_of_its_own(
    broker: Broker, topic: MakeTopic
) -> None:
    with Connection(broker.bootstrap) as connection:
        found = {connection.producer(None).producer_id for _ in range(20)}
    assert len(found) == 20
    assert min(found) >= 0


async def test_aiokafka_commits_and_aborts_in_one_session(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    client = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name("txn"))
    async with client:
        for n in range(6):
            await client.begin_transaction()
            await aiokafka_client.send(client, orders, [(b"k", b"%d" % n)])
            if n % 2:
                await client.abort_transaction()
            else:
                await client.commit_transaction()
    await_markers(broker, orders)
    seen = [value for _, _, value in CONFLUENT.consume(broker.bootstrap, orders)]
    assert seen == [b"0", b"2", b"4"]


def test_offsets_for_read_committed_end_at_the_last_stable_one(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        assert connection.produce(orders, batch([b"a", b"b"])).error_code == 0
        identity = connection.producer(name("txn"))
        connection.write_in_transaction(identity, orders, b"c")
        assert connection.list_offset(orders, -1, isolation=0)[2] == 3
        assert connection.list_offset(orders, -1, isolation=1)[2] == 2
    committed = confluent_client.consumer(broker.bootstrap, isolation_level="read_committed")
    position = TopicPartition(orders, 0)
    found = committed.get_watermark_offsets(position, timeout=TIMEOUT_S)
    committed.close()
    assert found is not None
    assert found[0] == 0
