"""Commits of thousands of offsets: one batch, in its order, and no long step of the loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.groups.records import ShardRecord, encode
from coordinator.groups.shard import GroupShard
from magnetar.broker import Broker
from magnetar.runtime.group_offsets import OffsetQuery
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
from tests.logstore.reading import records_from
from tests.magnetar.conftest import RawClient
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

Connect = Callable[[Broker], Awaitable[RawClient]]
VERSION = 8
COUNT = ELEMENTS_AT_ONCE + 1


def commit(offset: int, count: int = COUNT, metadata: str = "") -> OffsetCommitRequest:
    """Return a commit of an offset for partitions of "many". The last has the metadata."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index in range(count)
    ]
    partitions[-1].committed_metadata = metadata
    topic = OffsetCommitRequestTopic(name="many", partitions=partitions)
    return OffsetCommitRequest(group_id="g", topics=[topic])


def pending(producer: RawProducer, offset: int) -> TxnOffsetCommitRequest:
    """Return `commit` in the producer's transaction, with too much metadata for the last one."""
    topics = [
        TxnOffsetCommitRequestTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_metadata=each.committed_metadata,
                )
                for each in topic.partitions
            ],
        )
        for topic in commit(offset, metadata="x" * 5000).topics
    ]
    return TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="g",
        producer_id=producer.identity.producer_id,
        producer_epoch=producer.identity.producer_epoch,
        topics=topics,
    )


def codes(answer: OffsetCommitResponse | TxnOffsetCommitResponse) -> list[int]:
    (topic,) = answer.topics
    return [partition.error_code for partition in topic.partitions]


async def committed(broker: Broker, count: int = COUNT) -> set[int]:
    """Return the offsets that the first partitions of "many" have."""
    asked = [OffsetQuery("many", range(count))]
    (found,) = await broker.groups.offsets.fetch("g", asked, require_stable=False)
    return {each.offset for each in found.fetched()}


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that make records of groups."""
    makers: set[int] = set()

    def watched(record: ShardRecord) -> Any:
        makers.add(threading.get_ident())
        return encode(record)

    monkeypatch.setattr("magnetar.runtime.group_shards.encode", watched)
    return makers


async def test_the_event_loop_makes_no_record_of_a_large_commit(
    broker: Broker, client: RawClient, makers: set[int]
) -> None:
    """Of 9,000 offsets one step of the loop took 53 ms."""
    broker.topics.create("many", COUNT)
    answer = await client.ask(commit(5), VERSION, OffsetCommitResponse)
    assert codes(answer) == [0] * COUNT
    assert makers
    assert threading.get_ident() not in makers
    assert await committed(broker) == {5}


async def test_the_event_loop_makes_no_record_of_a_large_commit_in_a_transaction(
    broker: Broker, client: RawClient, makers: set[int]
) -> None:
    """Of 9,000 offsets one step of the loop took 35 ms."""
    broker.topics.create("many", COUNT)
    producer = RawProducer(client, "producer")
    assert await producer.init() == ErrorCode.NONE
    makers.clear()
    answer = await client.ask(pending(producer, 5), 5, TxnOffsetCommitResponse)
    assert codes(answer) == [0] * (COUNT - 1) + [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert makers
    assert threading.get_ident() not in makers
    assert await committed(broker) == {-1}
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert await committed(broker) == {5, -1}
    log = broker.groups.shards.of("g").log
    data, marker = sorted({header for header, _ in records_from(log.reader, 0)})
    assert (data.record_count, data.is_transactional) == (COUNT - 1, True)
    assert marker.is_control


async def test_a_large_commit_is_one_batch(broker: Broker, client: RawClient) -> None:
    broker.topics.create("many", COUNT)
    await client.ask(commit(5, metadata="x" * 5000), VERSION, OffsetCommitResponse)
    log = broker.groups.shards.of("g").log
    headers = {header for header, _ in records_from(log.reader, 0)}
    (header,) = headers
    # One was refused: its metadata is too large.
    assert header.record_count == COUNT - 1
    assert await committed(broker) == {5, -1}


async def test_commits_of_a_connection_stay_in_order_around_a_large_one(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("many", COUNT)
    sent = [client.send(commit(offset, count), VERSION) for offset, count in ORDER]
    assert [(await client.receive())[0] for _ in sent] == sent
    assert await committed(broker, 1) == {4}
    assert await committed(broker) == {3, 4}


#: Offset, and the partitions that it is committed for.
ORDER = [(1, 1), (2, COUNT), (3, COUNT), (4, 1)]


@pytest.fixture
def deleted_meanwhile(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic "many" goes while a commit is prepared."""
    run = LARGE_MESSAGES.run

    async def deleted_meanwhile(work: Callable[[], Any]) -> Any:
        done = await run(work)
        topic = broker.topics.by_name("many")
        if topic is not None and "prepare" in repr(work):
            await broker.topics.deletion.perform([topic])
        return done

    monkeypatch.setattr(LARGE_MESSAGES, "run", deleted_meanwhile)


@pytest.mark.usefixtures("deleted_meanwhile")
async def test_a_topic_that_goes_while_its_commit_is_prepared_gets_no_offsets(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("many", COUNT)
    answer = await client.ask(commit(5), VERSION, OffsetCommitResponse)
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * COUNT
    state: GroupShard = broker.groups.shards.of("g").state
    assert not state.exists("g")


@pytest.mark.usefixtures("deleted_meanwhile")
async def test_a_topic_that_goes_meanwhile_gets_no_offsets_of_a_transaction(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("many", COUNT)
    producer = RawProducer(client, "producer")
    assert await producer.init() == ErrorCode.NONE
    answer = await client.ask(pending(producer, 5), 5, TxnOffsetCommitResponse)
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * COUNT
    state: GroupShard = broker.groups.shards.of("g").state
    assert not state.exists("g")


async def test_a_large_commit_of_a_stranger_is_refused_whole(
    broker: Broker, client: RawClient
) -> None:
    broker.topics.create("many", COUNT)
    request = commit(5)
    request.member_id, request.generation_id_or_member_epoch = "stranger", 7
    answer = await client.ask(request, VERSION, OffsetCommitResponse)
    assert codes(answer) == [ErrorCode.ILLEGAL_GENERATION] * COUNT
    assert await committed(broker) == {-1}
