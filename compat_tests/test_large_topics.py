"""A topic of a thousand partitions lives like any other: made, grown, written, read, deleted.

Apache Kafka shows what is expected with fewer: it needs a minute and a half for a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from compat_tests import confluent_client
from compat_tests.admin import await_leaders, create_topic, delete_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.offsets import committed_offsets
from compat_tests.waiting import eventually

TOPIC, GROUP = "wide", "readers"
#: How many partitions there are at last, and which part of them at first.
PARTITIONS = {"magnetar": 1000, "kafka": 200}
FIRST = 0.4
#: A record, and the marker of its transaction.
END_OFFSET = 2


def write_to_all(broker: Broker, partitions: int) -> None:
    """One transaction, a record in each partition."""
    writer = confluent_client.producer(broker.bootstrap, transactional_id="writer")
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    for partition in range(partitions):
        writer.produce(TOPIC, b"%d" % partition, partition=partition)
    writer.commit_transaction(TIMEOUT_S)


def read_all(consumer: Consumer, partitions: int) -> set[tuple[int, bytes | None]]:
    """Return partition and value of a record of each partition."""
    found: set[tuple[int, bytes | None]] = set()

    def has_all() -> bool:
        for message in consumer.consume(partitions, 1.0):
            assert message.error() is None, message.error()
            found.add((message.partition() or 0, message.value()))
        return len(found) >= partitions

    eventually(has_all)
    return found


def end_offsets(broker: Broker, everywhere: Sequence[TopicPartition]) -> set[int]:
    client = confluent_client.consumer(broker.bootstrap)
    found = {client.get_watermark_offsets(each, timeout=TIMEOUT_S)[1] for each in everywhere}
    client.close()
    return found


def test_a_topic_of_a_thousand_partitions_lives_like_any_other(own_broker: Broker) -> None:
    partitions = PARTITIONS[own_broker.kind]
    everywhere = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    create_topic(own_broker.bootstrap, TOPIC, int(FIRST * partitions))
    admin.create_partitions([NewPartitions(TOPIC, partitions)])[TOPIC].result(TIMEOUT_S)
    await_leaders(own_broker.bootstrap, TOPIC, partitions)
    write_to_all(own_broker, partitions)
    reader = confluent_client.consumer(own_broker.bootstrap, GROUP)
    reader.subscribe([TOPIC])
    written = {(partition, b"%d" % partition) for partition in range(partitions)}
    assert read_all(reader, partitions) == written
    positions = [TopicPartition(TOPIC, partition, 1) for partition in range(partitions)]
    reader.commit(offsets=positions, asynchronous=False)
    reader.close()

    own_broker.restart(clean=False)
    await_leaders(own_broker.bootstrap, TOPIC, partitions)
    assert end_offsets(own_broker, everywhere) == {END_OFFSET}
    assert {*committed_offsets(own_broker.bootstrap, GROUP, everywhere)} == {1}

    delete_topic(own_broker.bootstrap, TOPIC)
    eventually(lambda: TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics)
    create_topic(own_broker.bootstrap, TOPIC, partitions)
    assert end_offsets(own_broker, everywhere) == {0}
