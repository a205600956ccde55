"""A topic of a thousand partitions lives like any other: made, grown, written, read, deleted."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from compat_tests import confluent_client
from compat_tests.admin import await_leaders, create_topic, delete_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.waiting import eventually

TOPIC, GROUP = "wide", "readers"
FIRST, PARTITIONS = 400, 1000
EVERYWHERE = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
#: A record, and the marker of its transaction.
END_OFFSET = 2


def write_to_all(broker: Broker) -> None:
    """One transaction, a record in each partition."""
    writer = confluent_client.producer(broker.bootstrap, transactional_id="writer")
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    for partition in range(PARTITIONS):
        writer.produce(TOPIC, b"%d" % partition, partition=partition)
    writer.commit_transaction(TIMEOUT_S)


def read_all(consumer: Consumer) -> set[tuple[int, bytes | None]]:
    """Return partition and value of a record of each partition."""
    found: set[tuple[int, bytes | None]] = set()

    def has_all() -> bool:
        for message in consumer.consume(PARTITIONS, 1.0):
            assert message.error() is None, message.error()
            found.add((message.partition() or 0, message.value()))
        return len(found) >= PARTITIONS

    eventually(has_all)
    return found


def end_offsets(broker: Broker) -> set[int]:
    client = confluent_client.consumer(broker.bootstrap)
    found = {client.get_watermark_offsets(each, timeout=TIMEOUT_S)[1] for each in EVERYWHERE}
    client.close()
    return found


def test_a_topic_of_a_thousand_partitions_lives_like_any_other(own_broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    create_topic(own_broker.bootstrap, TOPIC, FIRST)
    admin.create_partitions([NewPartitions(TOPIC, PARTITIONS)])[TOPIC].result(TIMEOUT_S)
    await_leaders(own_broker.bootstrap, TOPIC, PARTITIONS)
    write_to_all(own_broker)
    reader = confluent_client.consumer(own_broker.bootstrap, GROUP)
    reader.subscribe([TOPIC])
    written = {(partition, b"%d" % partition) for partition in range(PARTITIONS)}
    assert read_all(reader) == written
    positions = [TopicPartition(TOPIC, partition, 1) for partition in range(PARTITIONS)]
    reader.commit(offsets=positions, asynchronous=False)
    reader.close()

    own_broker.restart(clean=False)
    await_leaders(own_broker.bootstrap, TOPIC, PARTITIONS)
    assert end_offsets(own_broker) == {END_OFFSET}
    again = confluent_client.consumer(own_broker.bootstrap, GROUP)
    committed = again.committed(EVERYWHERE, TIMEOUT_S)
    again.close()
    assert {each.offset for each in committed} == {1}

    delete_topic(own_broker.bootstrap, TOPIC)
    eventually(lambda: TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics)
    create_topic(own_broker.bootstrap, TOPIC, PARTITIONS)
    assert end_offsets(own_broker) == {0}
