"""Anomalies that others' brokers have shown, told frame by frame to a whole broker of ours.

`tests/test_traps.py` says which test stands for which anomaly; here are those that need a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from coordinator.transactions.metadata import ProducerIdentity
from magnetar.apis.api_versions import TELEMETRY_APIS
from magnetar.apis.registry import load_apis
from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.records import iterate_batches, iterate_records

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST = -1
Connect = Callable[[Broker], Awaitable[RawClient]]


class World(NamedTuple):
    broker: Broker
    client: RawClient

    async def producer(self, transactional_id: str = "tx") -> RawProducer:
        producer = RawProducer(self.client, transactional_id)
        assert await producer.init() == ErrorCode.NONE
        return producer

    async def fetch(self, offset: int, isolation: int) -> PartitionData:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            topics=[FetchTopic(topic="a", partitions=[partition])],
        )
        answer = await self.client.ask(request, 12, FetchResponse)
        return answer.responses[0].partitions[0]

    async def latest(self, isolation: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name="a", partitions=[partition])],
        )
        answer = await self.client.ask(request, 6, ListOffsetsResponse)
        return answer.topics[0].partitions[0].offset

    async def committed_offset(self, group_id: str) -> tuple[int, int]:
        """Return offset and error code of a stable fetch."""
        topic = OffsetFetchRequestTopics(name="a", partition_indexes=[0])
        group = OffsetFetchRequestGroup(group_id=group_id, topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        answer = await self.client.ask(request, 8, OffsetFetchResponse)
        found = answer.groups[0].topics[0].partitions[0]
        return found.committed_offset, found.error_code


def values(fetched: PartitionData) -> list[bytes]:
    records = fetched.records
    assert isinstance(records, memoryview)
    return [
        bytes(record.value or b"")
        for header, batch in iterate_batches(records)
        if not header.is_control
        for record in iterate_records(batch)
    ]


@pytest.fixture(params=["fsync", "page-cache", "memory"])
async def world(
    request: pytest.FixtureRequest, start_broker: StartBroker, connect: Connect
) -> World:
    broker = await start_broker({"durability": request.param})
    broker.topics.create("a", 1)
    return World(broker, await connect(broker))


async def test_a_zombies_batch_after_its_abort_marker_touches_no_later_transaction(
    world: World,
) -> None:
    zombie = await world.producer()
    assert await zombie.add() == await zombie.produce(11) == ErrorCode.NONE
    successor = await world.producer()  # aborts the zombie's transaction
    assert await zombie.produce(11, b"late", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await zombie.produce(12, b"late", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    log = world.broker.topics.partition("a", 0)
    assert not list(log.transactions.open_transactions())
    assert await successor.add() == await successor.produce(11, b"next") == ErrorCode.NONE
    assert await zombie.produce(11, b"late", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await successor.end(commit=True) == ErrorCode.NONE
    fetched = await world.fetch(0, READ_COMMITTED)
    assert values(fetched) == [b"apple", b"next"]
    assert [(one.producer_id, one.first_offset) for one in fetched.aborted_transactions or ()] == [
        (zombie.identity.producer_id, 0)
    ]


async def test_the_latest_offset_is_the_stable_one_for_committed_readers(world: World) -> None:
    producer = await world.producer()
    assert await producer.add() == await producer.produce(11) == ErrorCode.NONE
    assert await world.latest(READ_UNCOMMITTED) == 1
    assert await world.latest(READ_COMMITTED) == 0
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert await world.latest(READ_COMMITTED) == await world.latest(READ_UNCOMMITTED) == 2


async def test_uncommitted_readers_get_aborted_data_and_no_aborted_list(world: World) -> None:
    producer = await world.producer()
    assert await producer.add() == await producer.produce(11) == ErrorCode.NONE
    assert values(await world.fetch(0, READ_UNCOMMITTED)) == [b"apple"]
    assert values(await world.fetch(0, READ_COMMITTED)) == []
    assert await producer.end(commit=False) == ErrorCode.NONE
    uncommitted = await world.fetch(0, READ_UNCOMMITTED)
    assert (values(uncommitted), uncommitted.aborted_transactions) == ([b"apple"], None)
    committed = await world.fetch(0, READ_COMMITTED)
    assert values(committed) == [b"apple"]
    assert [one.first_offset for one in committed.aborted_transactions or ()] == [0]


async def test_offsets_do_not_wait_for_an_older_transaction_of_somebody_else(world: World) -> None:
    older, younger = await world.producer("older"), await world.producer("younger")
    assert await older.send_offset("group-of-one", 1) == ErrorCode.NONE
    assert await older.send_offset("group", 1) == ErrorCode.NONE
    assert await younger.send_offset("other", 7) == ErrorCode.NONE
    assert await younger.end(commit=True) == ErrorCode.NONE
    # Both partitions of __consumer_offsets hold the older one open: its readers alone wait.
    assert await world.committed_offset("other") == (7, ErrorCode.NONE)
    _, code = await world.committed_offset("group")
    assert code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert await older.end(commit=False) == ErrorCode.NONE
    assert await world.committed_offset("group") == (-1, ErrorCode.NONE)


async def test_a_fetch_tells_all_three_watermarks_with_and_without_records(world: World) -> None:
    producer = await world.producer()
    for commit in (True, False):
        assert await producer.add() == ErrorCode.NONE
        assert await producer.produce(11, sequence=int(not commit)) == ErrorCode.NONE
        if commit:
            assert await producer.end(commit=True) == ErrorCode.NONE
    log = world.broker.topics.partition("a", 0)
    log.advance_start(1)
    for offset in (1, 2, 3):
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            told = await world.fetch(offset, isolation)
            assert told.error_code == ErrorCode.NONE
            assert (told.high_watermark, told.last_stable_offset, told.log_start_offset) == (
                3,
                2,
                1,
            )


async def test_every_version_that_is_advertised_is_implemented(world: World) -> None:
    answer = await world.client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    advertised = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    served = {
        key: (api.min_version, api.max_version)
        for key, api in load_apis().items()
        if key not in TELEMETRY_APIS  # told where a broker takes metrics of clients
    }
    assert {key: last for key, (_, last) in advertised.items()} == {
        key: last for key, (_, last) in served.items()
    }


async def test_a_failed_validation_leaves_nothing_and_the_producer_goes_on(world: World) -> None:
    producer = await world.producer()
    assert await producer.add() == ErrorCode.NONE
    log = world.broker.topics.partition("a", 0)
    assert await producer.produce(11, sequence=0) == ErrorCode.NONE
    end_offset = log.log_end_offset
    assert await producer.produce(11, sequence=5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == end_offset
    assert await producer.produce(11, sequence=1) == ErrorCode.NONE
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert values(await world.fetch(0, READ_COMMITTED)) == [b"apple", b"apple"]


async def test_what_overtakes_the_first_batch_of_a_transaction_is_refused(world: World) -> None:
    producer = await world.producer()
    assert await producer.produce(12, sequence=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.broker.topics.partition("a", 0).log_end_offset == 0
    for sequence in (0, 1):
        assert await producer.produce(12, sequence=sequence) == ErrorCode.NONE
    assert await producer.end(commit=True, version=5) == ErrorCode.NONE
    assert values(await world.fetch(0, READ_COMMITTED)) == [b"apple", b"apple"]


async def test_a_marker_from_nobody_is_harmless(world: World) -> None:
    stranger = RawProducer(world.client, "unknown")
    stranger.identity = ProducerIdentity(4711, 3)
    assert await stranger.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await stranger.produce(11) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await stranger.produce(12) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.broker.topics.partition("a", 0).log_end_offset == 0
