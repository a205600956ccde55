"""Consume, process, produce: the group's offsets move with the transaction or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioKafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import CommitFailedError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from compat_tests import confluent_client, kafka_python_client
from compat_tests.assignments import await_partitions
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.offsets import committed_offset, staged
from compat_tests.raw import UNSTABLE_OFFSET_COMMIT, Connection, Member
from compat_tests.transaction_ends import await_markers

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
FENCED_INSTANCE_ID = 82
PAIRS = [(b"k", b"%d" % n) for n in range(5)]


def joined(
    bootstrap: str, group: str, topic: str, partitions: int = 1, **settings: Any
) -> Consumer:
    """Return a consumer that has joined its group and been given the topic."""
    client = confluent_client.consumer(
        bootstrap, group, isolation_level="read_committed", **settings
    )
    client.subscribe([topic])
    await_partitions(client, partitions)
    return client


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_confluent_offsets_follow_their_transaction(
    broker: Broker, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    source, sink, group = topic("source"), topic("sink"), name("group")
    CONFLUENT.produce(broker.bootstrap, source, PAIRS)
    reader = joined(broker.bootstrap, group, source)
    writer = confluent_client.producer(broker.bootstrap, transactional_id=name("txn"))
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    confluent_client.send(writer, sink, PAIRS)
    writer.send_offsets_to_transaction(
        [TopicPartition(source, 0, 5)], reader.consumer_group_metadata(), TIMEOUT_S
    )
    if commit:
        writer.commit_transaction(TIMEOUT_S)
    else:
        writer.abort_transaction(TIMEOUT_S)
    reader.close()
    assert committed_offset(broker.bootstrap, group, source) == (5 if commit else -1001)
    await_markers(broker, sink)
    assert len(CONFLUENT.consume(broker.bootstrap, sink)) == (5 if commit else 0)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_kafka_python_offsets_follow_their_transaction(
    broker: Broker, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    source, sink, group = topic("source"), topic("sink"), name("group")
    CONFLUENT.produce(broker.bootstrap, source, PAIRS)
    reader = kafka_python_client.consumer(
        broker.bootstrap, group_id=group, isolation_level="read_committed"
    )
    kafka_python_client.subscribe(reader, source)
    read = 0
    deadline = time.monotonic() + TIMEOUT_S
    while read < len(PAIRS):
        read += sum(map(len, reader.poll(timeout_ms=200).values()))
        assert time.monotonic() < deadline, read
    writer = kafka_python_client.producer(broker.bootstrap, transactional_id=name("txn"))
    writer.init_transactions()
    writer.begin_transaction()
    kafka_python_client.send(writer, sink, PAIRS)
    positions = {KafkaPythonPartition(source, 0): OffsetAndMetadata(5, "", -1)}
    writer.send_offsets_to_transaction(positions, reader.group_metadata())
    if commit:
        writer.commit_transaction()
    else:
        writer.abort_transaction()
    writer.close()
    reader.close()
    assert committed_offset(broker.bootstrap, group, source) == (5 if commit else -1001)
    await_markers(broker, sink)
    assert len(CONFLUENT.consume(broker.bootstrap, sink)) == (5 if commit else 0)


def test_kafka_python_commits_refused_offsets_with_its_next_transaction(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """As docs/clients.md says, with either broker: here they take the group back from 9 to 5."""
    source, group = topic("source", partitions=2), name("group")
    writer = kafka_python_client.producer(broker.bootstrap, transactional_id=name("txn"))
    writer.init_transactions()
    writer.begin_transaction()
    refused = {KafkaPythonPartition(source, 0): OffsetAndMetadata(5, "", -1)}
    with pytest.raises(CommitFailedError):
        writer.send_offsets_to_transaction(refused, ConsumerGroupMetadata(group, 7, "long gone"))
    writer.abort_transaction()
    other = confluent_client.consumer(broker.bootstrap, group)
    other.commit(offsets=[TopicPartition(source, 0, 9)], asynchronous=False)
    other.close()
    writer.begin_transaction()
    later = {KafkaPythonPartition(source, 1): OffsetAndMetadata(3, "", -1)}
    writer.send_offsets_to_transaction(later, ConsumerGroupMetadata(group))
    writer.commit_transaction()
    writer.close()
    assert committed_offset(broker.bootstrap, group, source, 1) == 3
    assert committed_offset(broker.bootstrap, group, source, 0) == 5


def test_librdkafka_goes_to_a_beginning_that_it_looked_for_before_a_seek(
    broker: Broker, topic: MakeTopic
) -> None:
    """As docs/clients.md says, with either broker: no answer of theirs takes the reader back."""
    source = topic("source")
    confluent_client.send(confluent_client.producer(broker.bootstrap), source, PAIRS)
    # Not each time: on a busy machine the answer may come before the seek.
    assert any(0 in offsets_after_a_seek(broker, source) for _ in range(10))


def offsets_after_a_seek(broker: Broker, source: str) -> list[int | None]:
    """Return what a reader is given that looks for the beginning, and is sent to offset 3."""
    reader = confluent_client.consumer(broker.bootstrap)
    reader.list_topics(source, TIMEOUT_S)
    reader.assign([TopicPartition(source, 0, OFFSET_BEGINNING)])
    try:
        reader.seek(TopicPartition(source, 0, 3))
        messages = [reader.poll(1.5) for _ in range(7)]
    except KafkaException:
        return []  # The partition was not begun yet.
    finally:
        reader.close()
    return [each.offset() for each in messages if each is not None]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_aiokafka_offsets_follow_their_transaction(
    broker: Broker, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    source, group = topic("source"), name("group")
    writer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name("txn"))
    async with writer:
        await writer.begin_transaction()
        await writer.send_offsets_to_transaction({AioKafkaPartition(source, 0): 5}, group)
        if commit:
            await writer.commit_transaction()
        else:
            await writer.abort_transaction()
    assert committed_offset(broker.bootstrap, group, source) == (5 if commit else -1001)


def test_a_member_of_an_older_generation_cannot_commit(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    source, group = topic("source", partitions=2), name("group")
    reader = joined(broker.bootstrap, group, source, 2)
    stale = reader.consumer_group_metadata()
    reader.close()
    reader = joined(broker.bootstrap, group, source, 2)
    writer = confluent_client.producer(broker.bootstrap, transactional_id=name("txn"))
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        writer.send_offsets_to_transaction([TopicPartition(source, 0, 5)], stale, TIMEOUT_S)
    assert refused.value.args[0].txn_requires_abort()
    writer.abort_transaction(TIMEOUT_S)
    reader.close()
    assert committed_offset(broker.bootstrap, group, source) == -1001


def test_offsets_are_taken_from_the_member_the_group_knows_and_nobody_else(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """KIP-447: fenced by member, by generation, and by the instance of a static member."""
    source, group = topic("source"), name("group")
    reader = kafka_python_client.consumer(
        broker.bootstrap, group_id=group, group_instance_id="instance"
    )
    kafka_python_client.subscribe(reader, source)
    deadline = time.monotonic() + TIMEOUT_S
    while not reader.assignment():
        reader.poll(timeout_ms=100)
        assert time.monotonic() < deadline, "no assignment"
    known = reader.group_metadata()
    member = Member(known.member_id, known.generation_id, "instance")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("txn"))
        assert connection.add_offsets(identity, group) == 0
        for stranger, code in (
            (member._replace(member_id="stranger", group_instance_id=None), UNKNOWN_MEMBER_ID),
            (member._replace(generation_id=member.generation_id + 1), ILLEGAL_GENERATION),
            (member._replace(generation_id=member.generation_id - 1), ILLEGAL_GENERATION),
            (member._replace(member_id="former"), FENCED_INSTANCE_ID),
            (member._replace(group_instance_id="other"), UNKNOWN_MEMBER_ID),
            (member, 0),
        ):
            answered = connection.txn_offset_commit(
                identity, group, source, 7, version=3, member=stranger
            )
            assert answered == code, stranger
        assert connection.end(identity, commit=True).error_code == 0
        assert connection.settled_offset(group, source) == (0, 7)
    reader.close()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_pending_offset_is_unstable_until_its_transaction_ends(
    broker: Broker, topic: MakeTopic, name: MakeName, commit: bool
) -> None:
    source, group = topic("source"), name("group")
    end = staged(broker.bootstrap, source, group, name("txn"))
    with Connection(broker.bootstrap) as connection:
        code, _ = connection.committed_offset(group, source, require_stable=True)
        assert code == UNSTABLE_OFFSET_COMMIT
        assert connection.committed_offset(group, source, require_stable=False) == (0, -1)
    end(commit)
    assert committed_offset(broker.bootstrap, group, source) == (7 if commit else -1001)
