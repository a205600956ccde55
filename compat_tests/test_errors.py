"""Refusals: a request that cannot be served gets the error that Kafka gives.

It does no harm to other clients.
"""

from __future__ import annotations

import socket
import struct

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from compat_tests import confluent_client
from compat_tests.admin import create_topic, delete_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.raw import Closed, Connection, batch

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_REQUIRED_ACKS = 21
UNKNOWN_LEADER_EPOCH = 75


def test_an_unknown_topic_is_not_made_up_where_that_is_off(
    broker_kind: str, start_broker: StartBroker
) -> None:
    broker = start_broker(broker_kind, {"auto.create.topics.enable": "false"})
    client = confluent_client.producer(broker.bootstrap, topic_metadata_propagation_max_ms=300)
    with pytest.raises(KafkaException) as refused:
        confluent_client.send(client, "absent", [(b"k", b"v")])
    assert refused.value.args[0].code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
    )
    with Connection(broker.bootstrap) as connection:
        answer = connection.produce("absent", batch([b"v"]))
    assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_is_made_by_producing_to_it(broker: Broker, name: MakeName) -> None:
    orders = name("fresh")
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"v")])
    assert len(CONFLUENT.consume(broker.bootstrap, orders)) == 1


def test_a_message_above_the_limit_is_refused(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", max_message_bytes="2000")
    with Connection(broker.bootstrap) as connection:
        answer = connection.produce(orders, batch([b"x" * 3000]))
        assert (answer.error_code, answer.base_offset) == (MESSAGE_TOO_LARGE, -1)
        assert connection.produce(orders, batch([b"x" * 1000])).base_offset == 0


def test_strange_acks_are_told_behind_what_is_not_there(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        for name, partition, code in (
            (orders, 0, INVALID_REQUIRED_ACKS),
            (orders, 7, UNKNOWN_TOPIC_OR_PARTITION),
            (f"{orders}-none", 0, UNKNOWN_TOPIC_OR_PARTITION),
        ):
            answer = connection.produce(name, batch([b"v"]), partition=partition, acks=2)
            assert answer.error_code == code, (name, partition)


def test_a_corrupt_batch_is_refused_and_nothing_is_written(
    broker: Broker, topic: MakeTopic
) -> None:
    orders = topic("orders")
    records = bytearray(batch([b"hello"]))
    records[-1] ^= 0xFF
    with Connection(broker.bootstrap) as connection:
        answer = connection.produce(orders, bytes(records))
        assert (answer.error_code, answer.base_offset) == (CORRUPT_MESSAGE, -1)
        assert connection.fetch(orders, 0).high_watermark == 0


def test_an_offset_outside_the_log_is_out_of_range(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        connection.produce(orders, batch([b"a"]))
        assert connection.fetch(orders, 1).error_code == 0
        assert connection.fetch(orders, 2).error_code == OFFSET_OUT_OF_RANGE
        assert connection.fetch(orders, -5).error_code == OFFSET_OUT_OF_RANGE


def test_a_wrong_leader_epoch_is_told_apart(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as connection:
        # Each node of a cluster counts its own starts.
        asked = MetadataRequest[7](topics=[(orders,)], allow_auto_topic_creation=False)
        (found,) = connection.call(asked, MetadataResponse).topics
        epoch = found.partitions[0].leader_epoch
        assert connection.fetch(orders, 0, leader_epoch=epoch).error_code == 0
        later = connection.fetch(orders, 0, leader_epoch=epoch + 9)
        assert later.error_code == UNKNOWN_LEADER_EPOCH


def test_a_deleted_topic_is_gone_and_comes_back_empty(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"v")] * 3)
    delete_topic(broker.bootstrap, orders)
    create_topic(broker.bootstrap, orders)
    assert CONFLUENT.consume(broker.bootstrap, orders) == []


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "x" * 250], ids=repr)
def test_a_bad_topic_name_is_refused(broker: Broker, bad: str) -> None:
    with pytest.raises((KafkaException, ValueError)) as refused:
        create_topic(broker.bootstrap, bad)
    if isinstance(refused.value, KafkaException):
        assert refused.value.args[0].code() in (
            KafkaError.TOPIC_EXCEPTION,
            KafkaError._INVALID_ARG,
        )


def test_a_topic_that_exists_is_not_created_again(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with pytest.raises(KafkaException) as refused:
        create_topic(broker.bootstrap, orders)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", -5) + b"x" * 100,
        struct.pack(">ihhih", 12, 3, 12, 1, -1),
        struct.pack(">ihhi", 8, 999, 0, 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["huge", "negative", "half", "unknown-api", "http"],
)
def test_garbage_ends_its_own_connection_and_no_other(
    broker: Broker, topic: MakeTopic, garbage: bytes
) -> None:
    orders = topic("orders")
    with Connection(broker.bootstrap) as honest, Connection(broker.bootstrap) as hostile:
        assert honest.produce(orders, batch([b"a"])).error_code == 0
        hostile.send_bytes(garbage)
        hostile.finish()
        with pytest.raises(Closed):
            while True:
                hostile.receive_frame()
        assert honest.produce(orders, batch([b"b"])).error_code == 0


def test_half_a_frame_holds_up_nobody(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    with socket.create_connection(("127.0.0.1", broker.port)) as slow:
        slow.sendall(struct.pack(">i", 1000) + b"x" * 10)
        with Connection(broker.bootstrap) as connection:
            assert connection.produce(orders, batch([b"a"])).error_code == 0


def test_a_reader_beyond_the_end_resets_as_told(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"v")])
    reader = confluent_client.consumer(broker.bootstrap)
    reader.assign([TopicPartition(orders, 0, 1000)])
    message = reader.poll(TIMEOUT_S)
    reader.close()
    assert message is not None
    assert message.offset() == 0
