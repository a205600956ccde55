"""Where magnetar's transactions do more than Apache Kafka's, each asked of both, with both answers.

The table in docs/transactions.md, "Where this differs", names these and other tests by row.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from compat_tests.brokers import Broker
from compat_tests.client import TRANSACTION_TIMEOUT_MS
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.offsets import committed_offset, staged
from compat_tests.raw import Connection, Identity

NONE, INVALID_REQUEST, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED = 0, 42, 51, 90
FROM_THE_FUTURE = 1_000_000


def init_once(connection: Connection, transactional_id: str, known: Identity | None = None) -> Any:
    """Return the first answer of InitProducerId, whatever it is."""
    request = InitProducerIdRequest[4](
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        producer_id=known.producer_id if known else -1,
        producer_epoch=known.producer_epoch if known else -1,
    )
    return connection.call(request, InitProducerIdResponse)


def test_a_new_incarnation_is_answered_once_the_open_transaction_is_aborted(
    broker: Broker, connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, former = topic("orders"), connection.producer(name("txn"))
    assert former.transactional_id is not None
    connection.write_in_transaction(former, orders, b"v")
    answer = init_once(connection, former.transactional_id)
    if broker.kind == "kafka":
        assert answer.error_code == CONCURRENT_TRANSACTIONS
        return
    assert (answer.error_code, answer.producer_epoch) == (NONE, former.producer_epoch + 2)
    seen = connection.fetch(orders, 0, isolation=1)
    assert seen.last_stable_offset == seen.high_watermark == 2


def test_a_stale_incarnation_that_comes_back_harms_the_current_one(
    broker: Broker, connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, stale = topic("orders"), connection.producer(name("txn"))
    assert stale.transactional_id is not None
    current = connection.producer(stale.transactional_id)
    connection.write_in_transaction(current, orders, b"v")
    # Kafka says CONCURRENT_TRANSACTIONS first, while it aborts what the current one has open.
    code, _ = connection.init_producer_id(stale.transactional_id, known=stale)
    assert code == PRODUCER_FENCED
    ended = connection.end(current, commit=True).error_code
    assert ended == (PRODUCER_FENCED if broker.kind == "kafka" else NONE)


def test_markers_of_a_coordinator_from_the_future_fence_the_real_one(
    broker: Broker, connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, identity = topic("orders"), connection.producer(name("txn"))
    connection.write_in_transaction(identity, orders, b"v")
    request = WriteTxnMarkersRequest[1](
        markers=[
            (
                identity.producer_id,
                identity.producer_epoch,
                False,
                [(orders, [0])],
                FROM_THE_FUTURE,
            )
        ]
    )
    (marker,) = connection.call(request, WriteTxnMarkersResponse).markers
    code = marker.topics[0].partitions[0].error_code
    assert code == (NONE if broker.kind == "kafka" else INVALID_REQUEST)


@pytest.mark.magnetar_only("Kafka answers CONCURRENT_TRANSACTIONS until the markers are written")
def test_the_next_transaction_begins_at_once(
    connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, identity = topic("orders", partitions=4), connection.producer(name("txn"))
    request = AddPartitionsToTxnRequest[3](
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[(orders, [0, 1, 2, 3])],
    )
    for number in range(50):
        (results,) = connection.call(
            request, AddPartitionsToTxnResponse
        ).results_by_topic_v3_and_below
        assert {each.partition_error_code for each in results.results_by_partition} == {NONE}
        assert connection.end(identity, commit=number % 2 == 0).error_code == NONE


@pytest.mark.magnetar_only("Kafka answers before the markers are written")
def test_readers_know_how_a_transaction_ended_once_its_producer_does(
    connection: Connection, topic: MakeTopic, name: MakeName
) -> None:
    orders, identity = topic("orders"), connection.producer(name("txn"))
    for number in range(50):
        connection.write_in_transaction(identity, orders, b"v", sequence=number)
        assert connection.end(identity, commit=number % 2 == 0).error_code == NONE
        seen = connection.fetch(orders, 0, isolation=1)
        assert seen.last_stable_offset == seen.high_watermark == 2 * (number + 1)


def test_a_client_whose_offsets_conflict_aborts_and_goes_on(
    start_broker: StartBroker, topic_on: MakeTopic
) -> None:
    broker = start_broker("magnetar", {"transaction.offset.conflict.detection.enable": "true"})
    source = topic_on(broker, "source")
    end = staged(broker.bootstrap, source, "group", "first")
    with pytest.raises(KafkaException) as refused:
        staged(broker.bootstrap, source, "group", "second")
    assert refused.value.args[0].txn_requires_abort()
    end(True)
    assert committed_offset(broker.bootstrap, "group", source) == 7
    staged(broker.bootstrap, source, "group", "second")(True)
