"""Transaction version 2 (KIP-890), request by request: what each says in which version, and why.

Each test runs against magnetar and Apache Kafka, so what it says is what Kafka does; where
magnetar goes further it says so and is marked.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from compat_tests import java, tool_box
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S, TRANSACTION_TIMEOUT_MS
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.raw import Connection, Ended, Identity, batch, unique
from compat_tests.waiting import eventually
from tools.reference_kafka import REFERENCE, Jars

INVALID_TIMESTAMP = 32
NONE, NOT_ENOUGH_REPLICAS, INVALID_REQUEST, OUT_OF_ORDER_SEQUENCE_NUMBER = 0, 19, 42, 45
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS = 47, 48, 51
INVALID_PRODUCER_ID_MAPPING, AUTHORIZATION_FAILED, FENCED = 49, 53, 90
UNKNOWN_TOPIC_ID = 100
READ_COMMITTED = 1
LOOP = Path(__file__).with_name("TransactionLoop.java")


class Producer:
    """A producer of version 2: it follows the identity that each EndTxn answers."""

    def __init__(self, connection: Connection, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
        self.connection = connection
        self.id = unique("v2")
        self.now = connection.producer(self.id, timeout_ms=timeout_ms, version=5)

    def at(self, epoch_lead: int = 0, producer_id_lead: int = 0) -> Identity:
        """Return the identity that is so many epochs, or producer ids, ahead."""
        return Identity(
            self.id,
            self.now.producer_id + producer_id_lead,
            self.now.producer_epoch + epoch_lead,
        )

    def send(self, topic: str, sequence: int = 0, *, who: Identity | None = None) -> int:
        """Return the error code, as a client sees it that asks again while it is told to."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            code = self.send_once(topic, sequence, who or self.now)
            # The coordinator's node did not answer in time; Kafka's markers are not there yet.
            waits = code in (NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS)
            if not waits or time.monotonic() > deadline:
                return code

    def send_once(self, topic: str, sequence: int, who: Identity) -> int:
        records = batch([b"v"], who, sequence)
        code: int = self.connection.produce(
            topic, records, transactional_id=self.id, version=12
        ).error_code
        return code

    def end(self, *, commit: bool, who: Identity | None = None) -> Ended:
        return self.connection.end(who or self.now, commit=commit, version=5)

    def follow(self, ended: Ended) -> None:
        assert ended.error_code == NONE, ended
        self.now = Identity(self.id, ended.producer_id, ended.producer_epoch)


def test_version_2_is_finalized(connection: Connection) -> None:
    request = ApiVersionsRequest[4](client_software_name="raw", client_software_version="1")
    answer = connection.call(request, ApiVersionsResponse)
    supported = {each.name: each for each in answer.supported_features}
    finalized = {each.name: each for each in answer.finalized_features}
    feature = supported["transaction.version"]
    assert (feature.min_version, feature.max_version) == (0, 2)
    level = finalized["transaction.version"]
    assert (level.min_version_level, level.max_version_level) == (2, 2)
    assert answer.finalized_features_epoch >= 0


def test_older_clients_are_not_told_of_features_from_version_0(connection: Connection) -> None:
    request = ApiVersionsRequest[3](client_software_name="raw", client_software_version="1")
    answer = connection.call(request, ApiVersionsResponse)
    assert "transaction.version" not in {each.name for each in answer.supported_features}
    assert "transaction.version" in {each.name for each in answer.finalized_features}


def test_every_end_bumps_the_epoch_and_markers_carry_it(
    connection: Connection, topic: MakeTopic
) -> None:
    orders, producer = topic("orders"), Producer(connection)
    for commit in (True, False, True):
        assert producer.send(orders) == NONE  # sequences begin again with each epoch
        before = producer.now
        producer.follow(producer.end(commit=commit))
        assert producer.now == Identity(producer.id, before.producer_id, before.producer_epoch + 1)


def test_a_partition_hears_of_a_producer_from_sequence_0_on(
    connection: Connection, topic: MakeTopic
) -> None:
    orders, producer = topic("orders"), Producer(connection)
    assert producer.send(orders, sequence=1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [producer.send(orders, sequence=sequence) for sequence in (0, 1)] == [NONE, NONE]
    producer.follow(producer.end(commit=True))


def test_the_retry_of_an_end_is_answered_again(connection: Connection, topic: MakeTopic) -> None:
    orders, producer = topic("orders"), Producer(connection)
    for commit in (True, False):
        producer.send(orders)
        ended = producer.end(commit=commit)
        assert producer.end(commit=commit) == ended
        assert producer.end(commit=not commit).error_code == INVALID_TXN_STATE
        producer.follow(ended)


def test_an_abort_of_nothing_succeeds_and_bumps(connection: Connection, topic: MakeTopic) -> None:
    producer = Producer(connection)
    assert producer.end(commit=True).error_code == INVALID_TXN_STATE
    for _ in range(2):
        aborted = producer.end(commit=False)
        assert aborted == (NONE, producer.now.producer_id, producer.now.producer_epoch + 1)
        assert producer.end(commit=False) == aborted
        producer.follow(aborted)
    assert producer.send(topic("orders")) == NONE


def test_a_commit_of_nothing_after_a_commit_is_refused(
    connection: Connection, topic: MakeTopic
) -> None:
    producer = Producer(connection)
    producer.send(topic("orders"))
    producer.follow(producer.end(commit=True))
    assert producer.end(commit=True).error_code == INVALID_TXN_STATE
    producer.follow(producer.end(commit=False))


def test_a_refused_batch_adds_nothing_to_the_transaction(
    broker: Broker, connection: Connection, topic: MakeTopic
) -> None:
    """Kafka adds the partition before it looks at the batch: a marker is all that is there."""
    orders = topic("orders", message_timestamp_before_max_ms="60000")
    producer = Producer(connection)
    old = batch([b"v"], producer.now, 0, timestamp_ms=5)
    answer = connection.produce(orders, old, transactional_id=producer.id, version=12)
    assert answer.error_code == INVALID_TIMESTAMP
    ended = producer.end(commit=True)
    if broker.kind == "magnetar":
        assert ended.error_code == INVALID_TXN_STATE
        ended = producer.end(commit=False)
    producer.follow(ended)
    markers = 0 if broker.kind == "magnetar" else 1
    eventually(lambda: connection.list_offset(orders, -1)[2] == markers)
    assert producer.send(orders) == NONE
    producer.follow(producer.end(commit=True))


class Relation(NamedTuple):
    """Who asks, and what a Produce v12, a TxnOffsetCommit v5 and an EndTxn v5 say to that."""

    epoch_lead: int
    producer_id_lead: int
    data: int
    end: int


@pytest.mark.parametrize(
    "asked",
    [
        Relation(-1, 0, INVALID_PRODUCER_EPOCH, FENCED),
        Relation(1, 0, INVALID_PRODUCER_EPOCH, FENCED),
        Relation(0, 100_000, INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_ID_MAPPING),
    ],
    ids=["an epoch ago", "an epoch ahead", "another producer id"],
)
def test_nobody_but_the_current_producer_is_heard(
    connection: Connection, topic: MakeTopic, name: MakeName, asked: Relation
) -> None:
    orders, producer = topic("orders"), Producer(connection)
    producer.follow(producer.end(commit=False))
    assert producer.send(orders) == NONE
    who = producer.at(asked.epoch_lead, asked.producer_id_lead)
    assert producer.send(orders, 0, who=who) == asked.data
    offsets = connection.txn_offset_commit(who, name("group"), orders, 1, version=5)
    assert offsets == asked.data
    assert producer.end(commit=True, who=who).error_code == asked.end
    producer.follow(producer.end(commit=True))


def test_an_unknown_transactional_id_is_refused(connection: Connection, topic: MakeTopic) -> None:
    orders, producer = topic("orders"), Producer(connection)
    stranger = Identity(unique("unknown"), producer.now.producer_id, 0)
    assert producer.end(commit=True, who=stranger).error_code == INVALID_PRODUCER_ID_MAPPING
    assert connection.produce(
        orders, batch([b"v"], stranger, 0), transactional_id=stranger.transactional_id, version=12
    ).error_code == INVALID_PRODUCER_ID_MAPPING  # fmt: skip
    assert connection.produce(
        orders, batch([b"v"], producer.now, 0), transactional_id=None, version=12
    ).error_code == AUTHORIZATION_FAILED  # fmt: skip
    nameless = Identity("", producer.now.producer_id, 0)
    code = connection.txn_offset_commit(nameless, unique("group"), orders, 1, version=5)
    assert code == INVALID_REQUEST


def test_what_is_delayed_from_an_earlier_transaction_is_refused(
    connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    """KAFKA-17754: none of these may land in the transaction that is open by now."""
    orders, group, producer = topic("orders"), name("group"), Producer(connection)
    producer.send(orders)
    earlier = producer.now
    producer.follow(producer.end(commit=True))
    assert producer.send(orders) == NONE
    assert producer.send(orders, 1, who=earlier) == INVALID_PRODUCER_EPOCH
    assert connection.txn_offset_commit(earlier, group, orders, 9, version=5) == 47
    assert connection.add_partitions(earlier, orders) == [FENCED]
    for commit in (True, False):
        assert producer.end(commit=commit, who=earlier).error_code == FENCED
    producer.follow(producer.end(commit=False))
    assert connection.committed_offset(group, orders, require_stable=True) == (NONE, -1)
    wait_until_stable(connection, orders, 4)


def test_offsets_are_added_to_the_transaction_by_themselves(
    connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, producer = topic("orders"), Producer(connection)
    for commit in (True, False):
        group = name("group")
        assert connection.txn_offset_commit(producer.now, group, orders, 7, version=5) == NONE
        _, unstable = connection.committed_offset(group, orders, require_stable=False)
        assert unstable == -1
        producer.follow(producer.end(commit=commit))
        expected = 7 if commit else -1
        assert connection.settled_offset(group, orders) == (0, expected)


def test_a_producer_that_timed_out_may_abort_and_go_on(
    own_broker: Broker, topic_on: MakeTopic
) -> None:
    orders = topic_on(own_broker, "orders")
    with Connection(own_broker.bootstrap) as connection:
        producer = Producer(connection, timeout_ms=4000)
        assert producer.send(orders) == NONE
        wait_until_stable(connection, orders, 2)
        assert producer.send(orders, 1) == INVALID_PRODUCER_EPOCH
        assert producer.end(commit=True).error_code == INVALID_TXN_STATE
        ended = producer.end(commit=False)
        assert ended == (NONE, producer.now.producer_id, producer.now.producer_epoch + 1)
        producer.follow(ended)
        assert producer.send(orders) == NONE


def wait_until_stable(connection: Connection, topic: str, end_offset: int) -> None:
    """Return when read_committed readers see everything before `end_offset`, and that is all."""

    def is_stable() -> bool:
        stable = connection.list_offset(topic, -1, isolation=READ_COMMITTED)[2]
        return stable == connection.list_offset(topic, -1)[2] == end_offset

    eventually(is_stable)


def test_an_id_may_change_from_one_version_to_the_other_and_back(
    connection: Connection, topic: MakeTopic
) -> None:
    orders, producer = topic("orders", partitions=2), Producer(connection)
    producer.send(orders)
    producer.follow(producer.end(commit=True))
    old = connection.producer(producer.id)  # a client of version 1 takes over
    assert producer.send(orders) == INVALID_PRODUCER_EPOCH
    connection.write_in_transaction(old, orders, b"v")
    assert connection.end(old, commit=True, version=4).error_code == NONE
    assert connection.add_partitions(old, orders) == [NONE]  # the same epoch goes on
    assert connection.end(old, commit=False, version=4).error_code == NONE
    assert connection.end(old, commit=True, version=4).error_code == INVALID_TXN_STATE
    producer.now = old  # and one of version 2 comes back with that identity
    producer.follow(producer.end(commit=False))
    assert producer.send(orders) == NONE
    producer.follow(producer.end(commit=True))
    wait_until_stable(connection, orders, 7)


def test_init_producer_id_over_an_open_transaction(
    connection: Connection, topic: MakeTopic
) -> None:
    orders = topic("orders")
    for names_itself, bump in ((False, 2), (True, 1)):
        producer = Producer(connection)
        assert producer.send(orders) == NONE
        known = producer.now if names_itself else None
        code, identity = connection.init_producer_id(producer.id, version=5, known=known)
        assert (code, identity) == (NONE, producer.at(bump))
        assert producer.send(orders, 1) == INVALID_PRODUCER_EPOCH


def topic_id(connection: Connection, topic: str) -> Any:
    request = MetadataRequest[12](
        topics=[(None, topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    (found,) = connection.call(request, MetadataResponse).topics
    return found.topic_id


def produce_13(connection: Connection, topic_id: Any, records: bytes, producer: Producer) -> int:
    request = ProduceRequest[13](
        transactional_id=producer.id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[(topic_id, [(0, records)])],
    )
    answer = connection.call(request, ProduceResponse)
    assert answer.responses[0].topic_id == topic_id
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def test_produce_by_topic_id(connection: Connection, topic: MakeTopic) -> None:
    orders, producer = topic("orders"), Producer(connection)
    records = batch([b"v"], producer.now, 0)
    known = topic_id(connection, orders)
    unknown = type(known)(int=known.int ^ 1) if hasattr(known, "int") else known
    assert produce_13(connection, unknown, records, producer) == UNKNOWN_TOPIC_ID
    assert produce_13(connection, known, records, producer) == NONE
    producer.follow(producer.end(commit=True))
    wait_until_stable(connection, orders, 2)


@pytest.mark.magnetar_only("Kafka answers EndTxn before the markers exist")
def test_the_end_that_is_answered_is_visible(connection: Connection, topic: MakeTopic) -> None:
    orders, producer = topic("orders"), Producer(connection)
    for number in range(20):
        assert producer.send_once(orders, 0, producer.now) == NONE
        producer.follow(producer.end(commit=True))
        assert connection.list_offset(orders, -1, isolation=READ_COMMITTED)[2] == 2 * number + 2


@pytest.mark.magnetar_only("Kafka takes any epoch one below for the retry of the last EndTxn")
def test_an_end_of_version_1_leaves_nothing_to_retry(
    connection: Connection, topic: MakeTopic
) -> None:
    orders, producer = topic("orders"), Producer(connection)
    earlier = producer.now
    producer.send(orders)
    producer.follow(producer.end(commit=True))
    producer.send(orders)
    assert connection.end(producer.now, commit=True, version=4).error_code == NONE
    assert producer.end(commit=True, who=earlier).error_code == FENCED


def loop(mode: str, *arguments: str, clients: Jars = REFERENCE) -> str:
    """Run TransactionLoop.java and return the values it found at the end, with commas."""
    return tool_box.run(str(LOOP), mode, *arguments, clients=clients).strip()


@java.BOTH_CLIENTS
def test_kafkas_own_client_consumes_processes_and_produces(
    broker: Broker, topic: MakeTopic, connection: Connection, clients: Jars
) -> None:
    source, sink, identifier = topic("source"), topic("sink"), unique("java")
    found = loop("pipeline", broker.bootstrap, source, sink, identifier, "60", clients=clients)
    assert found == ",".join(f"V{number}" for number in range(60))
    # Eleven transactions, each with an epoch: it is version 2 that the client speaks.
    filler = connection.producer(f"{identifier}-fill", version=5)
    assert filler.producer_epoch >= 9


@java.BOTH_CLIENTS
def test_kafkas_own_client_goes_on_after_a_timeout(
    broker: Broker, topic: MakeTopic, clients: Jars
) -> None:
    sink = topic("sink")
    found = loop("timeout", broker.bootstrap, sink, sink, unique("java"), "0", clients=clients)
    assert found == "again"


def test_kafkas_producer_performance_in_transactions(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", partitions=2)
    output = tool_box.run(
        "ProducerPerformance",
        *("--topic", orders, "--num-records", "2000", "--record-size", "100"),
        *("--throughput", "-1", "--transaction-duration-ms", "20"),
        *("--transactional-id", unique("perf"), "--bootstrap-server", broker.bootstrap),
    )
    assert "2000 records sent" in output
