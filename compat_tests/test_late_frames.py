"""Requests that are lost, doubled, or arrive in a later transaction than their own (KAFKA-17754).

A frame proxy stands between a client and the broker. Version 2 of transactions (KIP-890: Java's
client, and raw requests) keeps every transaction apart by its epoch; version 1 (librdkafka) keeps
what its one epoch can tell.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from kafka.protocol.producer import (
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    ProduceResponse,
)

from compat_tests import confluent_client, tool_box
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT, KAFKA_PYTHON
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.frame_proxy import Answer, Fault, FrameProxy, Request
from compat_tests.offsets import committed_offset
from compat_tests.raw import Closed, Connection, Identity, batch
from wire.messages.txn_offset_commit import TxnOffsetCommitResponse

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = (
    *(0, 22, 24, 25, 26),
    28,
)
NAMES = {
    PRODUCE: "Produce",
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_PARTITIONS: "AddPartitionsToTxn",
    ADD_OFFSETS: "AddOffsetsToTxn",
    END_TXN: "EndTxn",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit",
}
NOT_COORDINATOR = 16
NOT_ENOUGH_REPLICAS = 19
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
PRODUCER_FENCED = 90
FENCED = {INVALID_PRODUCER_EPOCH, PRODUCER_FENCED}
FAULTS = (Fault.LOSE_ANSWER, Fault.HOLD, Fault.DOUBLE)

#: A doubled first InitProducerId is two incarnations: the second fences the first, rightly.
ONE_RESULT = [
    pytest.param(api_key, fault, id=f"{name}-{fault.name.lower()}")
    for api_key, name in NAMES.items()
    for fault in FAULTS
    if (api_key, fault) != (INIT_PRODUCER_ID, Fault.DOUBLE)
]
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.bootstrap, broker.node_count) as proxy:
        yield proxy


def error_code(answer: Answer) -> int:
    """Return the one error code of an answer to a request for one partition."""
    if answer.request.api_key == TXN_OFFSET_COMMIT:
        return _code_of_offsets(answer)
    response = {
        PRODUCE: ProduceResponse,
        ADD_PARTITIONS: AddPartitionsToTxnResponse,
        END_TXN: EndTxnResponse,
    }[answer.request.api_key]
    decoded = response.decode(answer.frame, version=answer.request.api_version, header=True)
    found: int
    if answer.request.api_key == PRODUCE:
        found = decoded.responses[0].partition_responses[0].error_code
    elif answer.request.api_key == ADD_PARTITIONS:
        results = decoded.results_by_topic_v3_and_below[0]
        found = results.results_by_partition[0].partition_error_code
    else:
        found = decoded.error_code
    return found


def _code_of_offsets(answer: Answer) -> int:
    # kafka-python does not know the version of Kafka 4.4.
    version = answer.request.api_version
    body = answer.frame[4 + TxnOffsetCommitResponse.header_version(version) :]
    return TxnOffsetCommitResponse.decode(body, version).topics[0].partitions[0].error_code


def await_stable(connection: Connection, topic: str) -> None:
    """Kafka answers EndTxn before its markers are there."""
    while True:
        seen = connection.fetch(topic, 0, isolation=1)
        if seen.last_stable_offset == seen.high_watermark:
            return


def values(broker: Broker, topic: str) -> list[bytes | None]:
    """Return what read_committed sees."""
    return [value for _, _, value in CONFLUENT.consume(broker.bootstrap, topic)]


def settled_code(proxy: FrameProxy, request: Request) -> int:
    """Deliver a request until the transaction before it has ended, as Kafka wants to be asked."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        code = error_code(proxy.deliver(request))
        if code != CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
            return code
        time.sleep(0.02)


# Real clients: a fault in the middle of their work leaves exactly one result.


@pytest.mark.parametrize(("api_key", "fault"), ONE_RESULT)
def test_librdkafka_has_one_result_whatever_happens_to_a_request(
    broker: Broker,
    proxy: FrameProxy,
    topic: MakeTopic,
    name: MakeName,
    api_key: int,
    fault: Fault,
) -> None:
    orders, source, group = topic("orders"), topic("source"), name("group")
    rule = proxy.on(fault, api_key)
    client = confluent_client.producer(
        proxy.bootstrap,
        transactional_id=name("txn"),
        linger_ms=2,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50,
        retry_backoff_ms=10,
    )
    reader = confluent_client.consumer(broker.bootstrap, group)
    client.init_transactions(TIMEOUT_S)
    for number in range(3):
        client.begin_transaction()
        pairs = [(b"k", b"%d-%d" % (number, n)) for n in range(3)]
        confluent_client.send(client, orders, pairs)
        client.send_offsets_to_transaction(
            [TopicPartition(source, 0, number + 1)], reader.consumer_group_metadata(), TIMEOUT_S
        )
        client.commit_transaction(TIMEOUT_S)
    reader.close()
    assert len(rule.caught) == 1
    with Connection(broker.bootstrap) as connection:
        await_stable(connection, orders)
    assert values(broker, orders) == [b"%d-%d" % (m, n) for m in range(3) for n in range(3)]
    assert committed_offset(broker.bootstrap, group, source) == 3


@each_fault
def test_javas_copier_copies_exactly_once_whatever_happens_to_every_third_request(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName, fault: Fault
) -> None:
    source, sink = topic("source"), topic("sink")
    api_keys = (PRODUCE, END_TXN, TXN_OFFSET_COMMIT)
    rules = {api_key: proxy.on(fault, api_key, times=4, every=3) for api_key in api_keys}
    copies(broker, proxy, source, sink, name)
    assert [len(rule.caught) for rule in rules.values()] == [4, 4, 4]
    assert max(each.api_version for each in rules[END_TXN].caught) == 5


def copies(
    broker: Broker, proxy: FrameProxy, source: str, sink: str, name: MakeName
) -> tuple[str, str]:
    """Copy 300 records in transactions of 20, some aborted; check that each is there once."""
    group, transactional_id = name("group"), name("txn")
    pairs = [(b"k", b"%d" % n) for n in range(300)]
    KAFKA_PYTHON.produce(broker.bootstrap, source, pairs)
    tool_box.run(
        "TransactionalMessageCopier",
        *("--broker-list", proxy.bootstrap, "--input-topic", source, "--input-partition", "0"),
        *("--output-topic", sink, "--consumer-group", group),
        *("--transactional-id", transactional_id, "--transaction-size", "20"),
        *("--max-messages", "300", "--enable-random-aborts", "--group-mode"),
        "--use-group-metadata",
    )
    with Connection(broker.bootstrap) as connection:
        await_stable(connection, sink)
    assert values(broker, sink) == [value for _, value in pairs]
    assert committed_offset(broker.bootstrap, group, source) == 300
    return group, transactional_id


def test_nothing_of_javas_transactions_works_a_second_time(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName
) -> None:
    """Every request of a finished run arrives once more, while a successor has a transaction."""
    source, sink = topic("source"), topic("sink")
    rule = proxy.on(Fault.COPY, PRODUCE, END_TXN, TXN_OFFSET_COMMIT, times=1000)
    group, transactional_id = copies(broker, proxy, source, sink, name)
    assert len(rule.caught) >= 45
    with Connection(broker.bootstrap) as connection:
        current = connection.producer(transactional_id, version=5)
        answer = produce(connection, sink, current, b"last", 0)
        assert answer == 0
        for request in rule.caught:
            assert error_code(proxy.deliver(request)) in FENCED, NAMES[request.api_key]
        assert connection.end(current, commit=True, version=5).error_code == 0
        await_stable(connection, sink)
    assert values(broker, sink) == [*(b"%d" % n for n in range(300)), b"last"]
    assert committed_offset(broker.bootstrap, group, source) == 300


# Version 2, request by request: whatever is late carries an epoch that is over.


def produce(
    connection: Connection,
    topic: str,
    identity: Identity,
    value: bytes,
    sequence: int,
    version: int = 12,
) -> int:
    """Return the error code, of Kafka once it has written down that the last one has ended."""
    records = batch([value], identity, sequence)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        code = connection.produce(
            topic, records, transactional_id=identity.transactional_id, version=version
        ).error_code
        # Kafka says the former before version 12, and the latter since.
        if (
            code not in (NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS)
            or time.monotonic() > deadline
        ):
            return code
        time.sleep(0.02)


def transact(
    connection: Connection, topic: str, identity: Identity, group: str, *, commit: bool = True
) -> Identity:
    """Run one transaction of version 2 with offsets; return the identity of the next."""
    assert produce(connection, topic, identity, b"first", 0) == 0
    assert connection.txn_offset_commit(identity, group, topic, 1, version=5) == 0
    ended = connection.end(identity, commit=commit, version=5)
    assert ended.error_code == 0
    return replace(identity, producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)


@pytest.mark.parametrize("moment", ["between", "next is open"])
@pytest.mark.parametrize("api_key", [PRODUCE, TXN_OFFSET_COMMIT, ADD_PARTITIONS], ids=NAMES.get)
def test_what_is_late_enters_no_later_transaction(
    broker: Broker,
    proxy: FrameProxy,
    topic: MakeTopic,
    name: MakeName,
    api_key: int,
    moment: str,
) -> None:
    """Never delivered in its own transaction, it would be new in the next one."""
    orders, group = topic("orders"), name("group")
    with Connection(proxy.bootstrap) as victim, Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"), version=5)
        connection.committed_offset(group, orders, require_stable=True)
        following = transact(connection, orders, identity, group)
        # Lost now, it was sent in the first transaction.
        rule = proxy.on(Fault.HOLD, api_key)
        send_late(victim, api_key, orders, identity, group)
        await_stable(connection, orders)
        if moment == "next is open":
            assert produce(connection, orders, following, b"second", 0) == 0
        assert settled_code(proxy, rule.first()) in FENCED
        if moment == "between":
            assert produce(connection, orders, following, b"second", 0) == 0
        assert connection.txn_offset_commit(following, group, orders, 2, version=5) == 0
        assert connection.end(following, commit=True, version=5).error_code == 0
        await_stable(connection, orders)
        assert connection.settled_offset(group, orders) == (0, 2)
    assert values(broker, orders) == [b"first", b"second"]


def send_late(
    connection: Connection, api_key: int, topic: str, identity: Identity, group: str
) -> None:
    """Send a request of `identity`'s transaction into the proxy, which holds it."""
    with pytest.raises(Closed):
        if api_key == PRODUCE:
            produce(connection, topic, identity, b"late", 1)
        elif api_key == TXN_OFFSET_COMMIT:
            connection.txn_offset_commit(identity, group, topic, 77, version=5)
        else:
            connection.add_partitions(identity, topic)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_late_end_ends_no_later_transaction(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    orders, group = topic("orders"), name("group")
    rule = proxy.on(Fault.COPY, END_TXN)
    with Connection(proxy.bootstrap) as connection:
        identity = connection.producer(name("txn"), version=5)
        following = transact(connection, orders, identity, group, commit=commit)
        await_stable(connection, orders)
        assert produce(connection, orders, following, b"second", 0) == 0
        assert error_code(proxy.deliver(rule.first())) in FENCED
        assert connection.fetch(orders, 0).last_stable_offset == 2
        assert connection.end(following, commit=not commit, version=5).error_code == 0
        await_stable(connection, orders)
    assert values(broker, orders) == [b"first" if commit else b"second"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_the_same_end_again_is_success_and_names_the_same_successor(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    orders, group = topic("orders"), name("group")
    rule = proxy.on(Fault.COPY, END_TXN)
    with Connection(proxy.bootstrap) as connection:
        identity = connection.producer(name("txn"), version=5)
        following = transact(connection, orders, identity, group, commit=commit)
        await_stable(connection, orders)
        written = connection.fetch(orders, 0).high_watermark
        for _ in range(3):
            again = connection.end(identity, commit=commit, version=5)
            assert again == (0, following.producer_id, following.producer_epoch)
            late = proxy.deliver(rule.first())
            # Kafka may not have written down yet that it has ended.
            assert error_code(late) == 0
        opposite = connection.end(identity, commit=not commit, version=5)
        assert opposite.error_code == INVALID_TXN_STATE
        assert connection.fetch(orders, 0).high_watermark == written
    assert values(broker, orders) == ([b"first"] if commit else [])


# Version 1: one epoch for many transactions. What it can tell, and what it cannot.


def test_with_version_1_a_batch_between_transactions_is_refused(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        connection.write_in_transaction(identity, orders, b"first")
        assert connection.end(identity, commit=True).error_code == 0
        await_stable(connection, orders)
        assert produce(connection, orders, identity, b"late", 1, version=10) == INVALID_TXN_STATE
    assert values(broker, orders) == [b"first"]


def test_with_version_1_a_copied_batch_is_a_duplicate_in_the_next_transaction(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    rule = proxy.on(Fault.COPY, PRODUCE)
    with Connection(proxy.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        connection.write_in_transaction(identity, orders, b"first")
        assert connection.end(identity, commit=True).error_code == 0
        await_stable(connection, orders)
        connection.write_in_transaction(identity, orders, b"second", sequence=1)
        assert error_code(proxy.deliver(rule.first())) == 0
        assert connection.end(identity, commit=True).error_code == 0
        await_stable(connection, orders)
    assert values(broker, orders) == [b"first", b"second"]


def test_version_1_cannot_tell_a_late_end_from_an_early_one(
    broker: Broker, proxy: FrameProxy, topic: MakeTopic, name: MakeName
) -> None:
    """KAFKA-17754 itself, the same on both: nothing in the request says which transaction it ends.

    What is left of the transaction is refused, so it is cut short but never mixed with another.
    """
    orders = topic("orders")
    rule = proxy.on(Fault.COPY, END_TXN)
    with Connection(proxy.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        connection.write_in_transaction(identity, orders, b"first")
        assert connection.end(identity, commit=True).error_code == 0
        await_stable(connection, orders)
        connection.write_in_transaction(identity, orders, b"second", sequence=1)
        assert error_code(proxy.deliver(rule.first())) == 0
        await_stable(connection, orders)
        assert produce(connection, orders, identity, b"third", 2, version=10) == INVALID_TXN_STATE
        assert connection.end(identity, commit=False).error_code == INVALID_TXN_STATE
    assert values(broker, orders) == [b"first", b"second"]


# What only magnetar promises.


@pytest.mark.parametrize("transaction_version", [1, 2])
@pytest.mark.magnetar_only("Kafka takes batches until the marker is written")
def test_a_batch_right_behind_the_answered_end_is_refused(
    broker: Broker, topic: MakeTopic, name: MakeName, transaction_version: int
) -> None:
    orders = topic("orders")
    produce_version, end_version = {1: (10, 3), 2: (12, 5)}[transaction_version]
    expected = {1: INVALID_TXN_STATE, 2: INVALID_PRODUCER_EPOCH}[transaction_version]
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        sequence = 0
        for _ in range(20):
            connection.write_in_transaction(identity, orders, b"in time", sequence=sequence)
            ended = connection.end(identity, commit=True, version=end_version)
            late = produce(
                connection, orders, identity, b"late", sequence + 1, version=produce_version
            )
            assert late == expected
            sequence = sequence + 1 if transaction_version == 1 else 0
            if transaction_version == 2:
                identity = replace(identity, producer_epoch=ended.producer_epoch)
    assert values(broker, orders) == [b"in time"] * 20


@pytest.mark.magnetar_only("Kafka answers CONCURRENT_TRANSACTIONS while markers are due")
@pytest.mark.parametrize("version", [3, 5])
def test_two_of_the_same_end_at_once_are_both_success(
    broker: Broker, topic: MakeTopic, name: MakeName, version: int
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as one, Connection(broker.bootstrap) as other:
        identity = one.producer(name("txn"))
        for sequence in range(20):
            one.write_in_transaction(
                identity, orders, b"v", sequence=sequence if version == 3 else 0
            )
            request = EndTxnRequest[version](
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=True,
            )
            for connection in (one, other):
                connection.go_to_coordinator(request.transactional_id)
                connection.send(request)
            answers = [
                EndTxnResponse.decode(connection.receive_frame(), version=version, header=True)
                for connection in (one, other)
            ]
            assert [answer.error_code for answer in answers] == [0, 0]
            if version == 5:
                identity = replace(identity, producer_epoch=answers[1].producer_epoch)
    assert values(broker, orders) == [b"v"] * 20


@pytest.mark.magnetar_only("Kafka's marker may be lost when it dies right behind the answer")
def test_an_end_whose_answer_was_lost_with_the_broker_succeeds_when_retried(
    own_broker: Broker, topic_on: MakeTopic, name: MakeName
) -> None:
    orders, group = topic_on(own_broker, "orders"), name("group")
    with FrameProxy(own_broker.bootstrap, own_broker.node_count) as proxy:
        rule = proxy.on(Fault.LOSE_ANSWER, END_TXN)
        with Connection(proxy.bootstrap) as connection:
            identity = connection.producer(name("txn"), version=5)
            with pytest.raises(Closed):
                transact(connection, orders, identity, group)
        own_broker.restart(clean=False)
        with Connection(proxy.bootstrap) as connection:
            await_stable(connection, orders)
        # Of a cluster another node may coordinate the producer since.
        codes = {
            error_code(proxy.deliver(rule.first()._replace(node=node)))
            for node in range(own_broker.node_count)
        }
        assert codes - {NOT_COORDINATOR} == {0}
    assert values(own_broker, orders) == [b"first"]
    assert committed_offset(own_broker.bootstrap, group, orders) == 1
