"""CreatePartitions and DeleteRecords, in every version, and what readers see afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.broker import Broker
from magnetar.runtime.retention import advance
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.conftest import crash
from wire.error_code import ErrorCode
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
EARLIEST = -2


def growth(name: str, count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=each) for each in replicas]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments or None)


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows(broker: Broker, client: Any, version: int) -> None:
    topic = broker.topics.create("a", 2)
    request = CreatePartitionsRequest(topics=[growth("a", 4)], validate_only=True)
    (result,) = (await client.ask(request, version, CreatePartitionsResponse)).results
    assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    assert len(topic.partitions) == 2
    request.validate_only = False
    (result,) = (await client.ask(request, version, CreatePartitionsResponse)).results
    assert result.error_code == 0
    (described,) = (await client.ask(MetadataRequest(topics=None), 12, MetadataResponse)).topics
    assert [each.partition_index for each in described.partitions] == [0, 1, 2, 3]
    assert broker.topics.partition("a", 3).topic_id == topic.id


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (growth("a", 2), ErrorCode.INVALID_PARTITIONS),
        (growth("a", 1), ErrorCode.INVALID_PARTITIONS),
        (growth("a", -1), ErrorCode.INVALID_PARTITIONS),
        (growth("a", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (growth("b", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (growth(CONSUMER_OFFSETS, 9), ErrorCode.POLICY_VIOLATION),
        (growth("a", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("a", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("a", 3, [1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("a", 4, [1], [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("a", 4, [1], [1]), ErrorCode.NONE),
    ],
)
async def test_growth_that_is_refused_changes_nothing(
    broker: Broker, client: Any, asked: CreatePartitionsTopic, code: ErrorCode
) -> None:
    topic = broker.topics.create("a", 2)
    broker.topics.ensure(CONSUMER_OFFSETS)
    request = CreatePartitionsRequest(topics=[asked])
    (result,) = (await client.ask(request, 3, CreatePartitionsResponse)).results
    assert result.error_code == code
    assert len(topic.partitions) == (4 if code is ErrorCode.NONE else 2)


async def test_a_topic_named_twice_does_not_grow(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    request = CreatePartitionsRequest(topics=[growth("a", 2), growth("a", 3)])
    (result,) = (await client.ask(request, 3, CreatePartitionsResponse)).results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert len(topic.partitions) == 1


async def test_one_request_adds_only_so_many(broker: Broker, client: Any) -> None:
    topics = [broker.topics.create(name) for name in "ab"]
    request = CreatePartitionsRequest(topics=[growth("a", 5002), growth("b", 5001)])
    answer = await client.ask(request, 3, CreatePartitionsResponse)
    assert [each.error_code for each in answer.results] == [ErrorCode.POLICY_VIOLATION] * 2
    assert [len(topic.local) for topic in topics] == [1, 1]


async def test_partitions_added_are_there_after_a_restart(start_broker: StartBroker) -> None:
    broker = await start_broker({"durability": "page-cache"})
    broker.topics.create("a")
    await broker.topics.grow("a", 3)
    await write(broker, 2, 5)
    await broker.stop()
    again = await start_broker({"durability": "page-cache"})
    topic = again.topics.by_name("a")
    assert topic is not None
    assert [log.log_end_offset for log in topic.local] == [0, 0, 5]


async def write(broker: Broker, partition: int, count: int) -> None:
    """Append `count` batches of one record to a partition of topic `a`."""
    log = broker.topics.partition("a", partition)
    for _ in range(count):
        batch = build_batch([SimpleRecord(b"k", b"v", broker.clock.now_ms())])
        await log.durable(log.append(log.check(batch, broker.clock.now_ms())).end_offset)


def deletion(offset: int, name: str = "a", partition: int = 0) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[asked])])


async def delete(client: Any, request: DeleteRecordsRequest, version: int = 2) -> tuple[int, int]:
    (topic,) = (await client.ask(request, version, DeleteRecordsResponse)).topics
    (result,) = topic.partitions
    return result.error_code, result.low_watermark


def fetch(offset: int, **fields: Any) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        topics=[FetchTopic(topic="a", partitions=[partition])], max_bytes=1 << 20, **fields
    )


async def fetched(client: Any, offset: int) -> Any:
    answer = await client.ask(fetch(offset), 11, FetchResponse)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset(
    broker: Broker, client: Any, version: int
) -> None:
    broker.topics.create("a")
    await write(broker, 0, 10)
    assert await delete(client, deletion(4), version) == (0, 4)
    assert await delete(client, deletion(2), version) == (0, 4)
    below = await fetched(client, 3)
    assert (below.error_code, below.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    at_start = await fetched(client, 4)
    assert (at_start.error_code, at_start.log_start_offset) == (0, 4)
    assert at_start.high_watermark == 10
    assert len(at_start.records) > 0
    assert await earliest(client) == 4
    assert await delete(client, deletion(-1), version) == (0, 10)
    assert (await fetched(client, 10)).error_code == 0
    await write(broker, 0, 1)
    assert len((await fetched(client, 10)).records) > 0


async def test_only_the_starts_that_move_are_advanced(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 9,000 partitions that stay were a step of 20 ms."""
    broker.topics.create("a", 3)
    await write(broker, 1, 2)
    advanced: list[tuple[int, int]] = []

    async def noted(logs: Any, log: Any, start_offset: int) -> None:
        advanced.append((log.partition, start_offset))
        await advance(logs, log, start_offset)

    monkeypatch.setattr("magnetar.apis.delete_records.advance", noted)
    request = DeleteRecordsRequest(
        topics=[topic for index in range(3) for topic in deletion(-1, partition=index).topics]
    )
    (topic,) = (await client.ask(request, 2, DeleteRecordsResponse)).topics
    told = [(each.error_code, each.low_watermark) for each in topic.partitions]
    assert told == [(0, 0), (0, 2), (0, 0)]
    assert advanced == [(1, 2)]


async def test_a_client_that_goes_leaves_no_start_that_is_durable_and_not_in_effect(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.create("a")
    await write(broker, 0, 10)
    log = broker.topics.partition("a", 0)
    persist = broker.logs.persist_start_offsets
    is_durable, has_gone = asyncio.Event(), asyncio.Event()

    async def persist_and_wait(starts: Any) -> None:
        await persist(starts)
        is_durable.set()
        await has_gone.wait()

    monkeypatch.setattr(broker.logs, "persist_start_offsets", persist_and_wait)
    client.send(deletion(4), 2)
    await is_durable.wait()
    client.close()
    while broker.server.connection_count:
        await asyncio.sleep(0.001)
    assert log.log_start_offset == 0
    has_gone.set()
    async with asyncio.timeout(30):
        while log.log_start_offset != 4:
            await asyncio.sleep(0.001)


async def test_of_a_partition_that_is_named_twice_the_last_offset_counts(
    broker: Broker, client: Any
) -> None:
    broker.topics.create("a", configs={"cleanup.policy": ""})
    await write(broker, 0, 10)
    twice = deletion(4)
    twice.topics += [*deletion(3).topics, *deletion(5).topics]
    assert await delete(client, twice) == (0, 5)


async def earliest(client: Any) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="a", partitions=[asked])])
    answer = await client.ask(request, 7, ListOffsetsResponse)
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (deletion(1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (deletion(-2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (deletion(0, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (deletion(0, "b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (deletion(0, "compacted"), ErrorCode.POLICY_VIOLATION),
        (deletion(0, CONSUMER_OFFSETS), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_deletions_that_are_refused(
    broker: Broker, client: Any, request_: DeleteRecordsRequest, code: ErrorCode
) -> None:
    broker.topics.create("a")
    broker.topics.create("compacted", configs={"cleanup.policy": "compact"})
    broker.topics.ensure(CONSUMER_OFFSETS)
    assert await delete(client, request_) == (code, -1)


async def test_a_fetch_that_waits_below_the_new_start_is_answered(
    broker: Broker, client: Any, connect: Connect
) -> None:
    broker.topics.create("a")
    await write(broker, 0, 3)
    waiting = asyncio.create_task(
        client.ask(fetch(1, max_wait_ms=60_000, min_bytes=1 << 19), 11, FetchResponse)
    )
    log = broker.topics.partition("a", 0)
    while not log.reader._subscribers:
        await asyncio.sleep(0.001)
    assert await delete(await connect(broker), deletion(2)) == (0, 2)
    answer = await asyncio.wait_for(waiting, 5)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_an_open_transaction_is_no_hindrance(broker: Broker, client: Any) -> None:
    broker.topics.create("a")
    log = broker.topics.partition("a", 0)
    batch = build_batch(
        [SimpleRecord(b"k", b"v", broker.clock.now_ms())] * 3,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    await log.durable(log.append(log.check(batch, broker.clock.now_ms())).end_offset)
    assert log.last_stable_offset == 0
    assert await delete(client, deletion(2)) == (0, 2)
    assert log.last_stable_offset == 2
    marker = TransactionMarker(5, 0, 0, commit=True)
    marked = log.append_marker(marker, broker.clock.now_ms())
    await log.durable(marked.end_offset)
    assert log.last_stable_offset == 4


@pytest.mark.parametrize("clean", [True, False])
async def test_the_start_survives_the_end_of_the_broker(
    start_broker: StartBroker, connect: Connect, clean: bool
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    broker.topics.create("a")
    await write(broker, 0, 10)
    assert await delete(await connect(broker), deletion(7)) == (0, 7)
    if clean:
        await broker.stop()
    else:
        await crash(broker)
    again = await start_broker(settings)
    log = again.topics.partition("a", 0)
    assert (log.log_start_offset, log.log_end_offset) == (7, 10)
    assert (await fetched(await connect(again), 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_transaction_cut_in_its_middle_is_found_open_after_a_crash(
    start_broker: StartBroker, connect: Connect
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    broker.topics.create("a")
    log = broker.topics.partition("a", 0)
    now_ms = broker.clock.now_ms()
    for sequence in (0, 2):
        batch = build_batch(
            [SimpleRecord(b"k", b"v", now_ms)] * 2,
            producer_id=5,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        await log.durable(log.append(log.check(batch, now_ms)).end_offset)
    assert await delete(await connect(broker), deletion(3)) == (0, 3)
    await crash(broker)
    again = await start_broker(settings)
    found = again.topics.partition("a", 0)
    assert found.log_start_offset == 3
    # The start found it open, without a coordinator, and has aborted it: a marker at 4.
    assert (found.last_stable_offset, found.log_end_offset) == (5, 5)
