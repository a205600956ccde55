"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch as a client sees them, frame by frame."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.file_syncs import FileSyncs
from logstore.sync.sync_executors import Sync
from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
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
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import BATCH_OVERHEAD, BatchHeader, SimpleRecord, build_batch
from wire.records.header import pack_batch

TOPIC = "fruit"
Connect = Callable[[Broker], Awaitable[RawClient]]


def batch(*values: bytes, timestamp: int = 1_000) -> bytearray:
    return build_batch([SimpleRecord(None, value, timestamp) for value in values])


def produce_request(
    records: bytes | bytearray | None, partition: int = 0, **fields: Any
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        **{"acks": -1, "timeout_ms": 5_000, **fields},
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
    )


async def produce(
    client: RawClient, records: bytes | bytearray | None, partition: int = 0, **fields: int
) -> PartitionProduceResponse:
    answer = await client.ask(produce_request(records, partition, **fields), 9, ProduceResponse)
    return answer.responses[0].partition_responses[0]


def fetch_request(offsets: dict[int, int], **fields: Any) -> FetchRequest:
    """A request for the partitions of `offsets`, each from its offset on."""
    limits: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    return FetchRequest(
        **{**limits, **fields},
        topics=[
            FetchTopic(
                topic=TOPIC,
                partitions=[
                    FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=1 << 20
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
    )


async def fetch(client: RawClient, offset: int, **fields: int) -> PartitionData:
    answer = await client.ask(fetch_request({0: offset}, **fields), 12, FetchResponse)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.topics.create(TOPIC, 3)
    return TOPIC


@pytest.mark.usefixtures("topic")
class TestProduce:
    async def test_offsets_are_assigned_in_order(self, client: RawClient) -> None:
        assert (await produce(client, batch(b"apple", b"pear"))).base_offset == 0
        assert (await produce(client, batch(b"plum"))).base_offset == 2

    async def test_a_refused_partition_refuses_no_other(self, client: RawClient) -> None:
        request = produce_request(batch(b"apple"))
        request.topic_data[0].partition_data += [
            PartitionProduceData(index=1, records=batch(b"pear")[:-1]),
            PartitionProduceData(index=7, records=batch(b"plum")),
        ]
        answer = await client.ask(request, 9, ProduceResponse)
        codes = [partition.error_code for partition in answer.responses[0].partition_responses]
        assert codes == [
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    @pytest.mark.parametrize("records", [None, b""])
    async def test_no_batch_is_an_invalid_record(
        self, client: RawClient, records: bytes | None
    ) -> None:
        assert (await produce(client, records)).error_code == ErrorCode.INVALID_RECORD

    async def test_unknown_acks_append_nothing(self, client: RawClient) -> None:
        answer = await produce(client, batch(b"apple"), acks=2)
        assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert (await fetch(client, 0)).high_watermark == 0

    async def test_acks_0_is_not_answered(self, client: RawClient) -> None:
        client.send(produce_request(batch(b"apple"), acks=0), 9)
        assert (await produce(client, batch(b"pear"))).base_offset == 1

    async def test_a_refusal_of_acks_0_closes_the_connection(self, client: RawClient) -> None:
        client.send(produce_request(batch(b"apple"), partition=9, acks=0), 9)
        assert await client.is_closed()

    async def test_clients_do_not_write_the_coordinators_topics(
        self, broker: Broker, client: RawClient
    ) -> None:
        broker.topics.ensure_internal("__transaction_state")
        request = produce_request(batch(b"apple"))
        request.topic_data[0].name = "__transaction_state"
        answer = await client.ask(request, 9, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_sync_has_the_time_that_it_needs(
    start_broker: Callable[..., Awaitable[Broker]], connect: Connect, acks: int
) -> None:
    broker = await start_broker({"durability": "fsync"})
    broker.topics.create(TOPIC, 1)
    answer = await produce(await connect(broker), batch(b"apple"), acks=acks, timeout_ms=0)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.usefixtures("topic")
async def test_what_is_not_durable_in_time_is_said_to_be_so_and_stays(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    with monkeypatch.context() as held:
        held.setattr(MemoryLedger, "begin_sync", lambda ledger: Sync(ledger.durable_end_offset))
        answer = await produce(client, batch(b"apple"), timeout_ms=0)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert time.monotonic() - began_s >= 1
    assert (await produce(client, batch(b"pear"))).base_offset == 1
    assert (await fetch(client, 0)).high_watermark == 2


async def test_a_topic_deleted_before_its_batch_is_durable_refuses_no_other(
    start_broker: Callable[..., Awaitable[Broker]],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_sync = threading.Event()
    whole_work = FileSyncs._work_of

    def held_work(self: FileSyncs, syncs: Sequence[Sync], *, settles: bool) -> Callable[[], None]:
        work = whole_work(self, syncs, settles=settles)
        return lambda: (may_sync.wait(10), work())[1]

    monkeypatch.setattr(FileSyncs, "_work_of", held_work)
    broker = await start_broker({"durability": "fsync"})
    kept, gone = broker.topics.create(TOPIC, 1), broker.topics.create("gone", 1)
    request = produce_request(batch(b"apple"))
    data = PartitionProduceData(index=0, records=batch(b"pear"))
    request.topic_data.insert(0, TopicProduceData(name="gone", partition_data=[data]))
    client = await connect(broker)
    client.send(request, 9)
    async with asyncio.timeout(30):
        while not kept.local[0].log_end_offset:
            await asyncio.sleep(0.001)
    await broker.topics.deletion.perform([gone])
    may_sync.set()
    _, body = await asyncio.wait_for(client.receive(), 10)
    answers = {
        topic.name: topic.partition_responses[0]
        for topic in ProduceResponse.decode(body[1:], 9).responses
    }
    assert answers["gone"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (answers[TOPIC].error_code, answers[TOPIC].base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.usefixtures("topic")
class TestFetch:
    async def test_bytes_come_back_as_they_were_sent(self, client: RawClient) -> None:
        sent = batch(b"apple", b"pear")
        await produce(client, sent)
        got = await fetch(client, 1)
        assert (got.high_watermark, got.last_stable_offset, got.log_start_offset) == (2, 2, 0)
        # Base offset and leader epoch are the broker's to write; the checksum does not cover them.
        assert isinstance(got.records, memoryview)
        assert got.records[16:].tobytes() == sent[16:]

    async def test_isolation_decides_about_the_aborted_list(self, client: RawClient) -> None:
        await produce(client, batch(b"apple"))
        assert (await fetch(client, 0)).aborted_transactions is None
        assert (await fetch(client, 0, isolation_level=1)).aborted_transactions == []

    async def test_at_the_end_it_waits_until_something_arrives(
        self, broker: Broker, client: RawClient, connect: Connect
    ) -> None:
        client.send(fetch_request({0: 0, 1: 0}, max_wait_ms=60_000), 12)
        await produce(await connect(broker), batch(b"apple"), partition=1)
        _, body = await asyncio.wait_for(client.receive(), 10)
        partitions = FetchResponse.decode(body[1:], 12).responses[0].partitions
        assert [partition.high_watermark for partition in partitions] == [0, 1]

    async def test_it_waits_for_min_bytes(
        self, broker: Broker, client: RawClient, connect: Connect
    ) -> None:
        other = await connect(broker)
        size = len(batch(b"apple"))
        client.send(fetch_request({0: 0}, max_wait_ms=60_000, min_bytes=2 * size), 12)
        await produce(other, batch(b"apple"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                asyncio.shield(receiving := asyncio.ensure_future(client.receive())), 0.05
            )
        await produce(other, batch(b"grape"))
        _, body = await asyncio.wait_for(receiving, 10)
        records = FetchResponse.decode(body[1:], 12).responses[0].partitions[0].records
        assert records is not None and len(records) == 2 * size

    async def test_less_than_min_bytes_is_answered_after_max_wait(self, client: RawClient) -> None:
        await produce(client, batch(b"apple"))
        got = await fetch(client, 0, max_wait_ms=1, min_bytes=1 << 19)
        assert got.records

    async def test_what_the_limits_hold_back_is_not_waited_for(self, client: RawClient) -> None:
        for value in (b"apple", b"pear", b"plum"):
            await produce(client, batch(value))
        for limit in (100, 150):
            request = fetch_request({0: 0}, max_wait_ms=60_000, min_bytes=1 << 19)
            request.topics[0].partitions[0].partition_max_bytes = limit
            answer = await asyncio.wait_for(client.ask(request, 12, FetchResponse), 10)
            assert answer.responses[0].partitions[0].records

    async def test_more_than_max_bytes_is_not_waited_for(self, client: RawClient) -> None:
        size = len(batch(b"apple"))
        await produce(client, batch(b"apple"))
        asked = fetch(client, 0, max_wait_ms=60_000, min_bytes=1 << 19, max_bytes=size)
        assert (await asyncio.wait_for(asked, 10)).records

    async def test_parted_logs_are_told_at_once_and_without_records(
        self, broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await produce(client, batch(b"apple"))
        log = broker.topics.partition(TOPIC, 0)
        monkeypatch.setattr(log, "end_offset_for_epoch", lambda epoch: (epoch - 1, 1))
        request = fetch_request({0: 9, 1: 0}, max_wait_ms=60_000)
        request.topics[0].partitions[0].last_fetched_epoch = 5
        answer = await asyncio.wait_for(client.ask(request, 12, FetchResponse), 10)
        told = answer.responses[0].partitions[0]
        assert (told.error_code, told.high_watermark, len(told.records or b"")) == (0, 1, 0)
        assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (4, 1)

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_the_first_batch_comes_without_any_limit_for_it(
        self, client: RawClient, limit: int
    ) -> None:
        await produce(client, batch(b"apple"))
        assert (await fetch(client, 0, max_bytes=limit)).records

    async def test_the_first_batch_is_whole_however_small_the_limit(
        self, client: RawClient
    ) -> None:
        large = batch(b"a" * 10_000)
        await produce(client, large)
        await produce(client, batch(b"pear"))
        await produce(client, batch(b"plum"), partition=1)
        request = fetch_request({0: 0, 1: 0}, max_bytes=100)
        answer = await client.ask(request, 12, FetchResponse)
        sizes = [len(partition.records or b"") for partition in answer.responses[0].partitions]
        assert sizes == [len(large), 0]

    @pytest.mark.parametrize("offset", [-1, 2])
    async def test_outside_of_the_log_is_out_of_range(self, client: RawClient, offset: int) -> None:
        await produce(client, batch(b"apple"))
        got = await fetch(client, offset, max_wait_ms=60_000)
        assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    async def test_leader_epochs_are_checked(self, broker: Broker, client: RawClient) -> None:
        request = fetch_request({0: 0})
        asked = request.topics[0].partitions[0]
        epoch = broker.topics.partition(TOPIC, 0).leader_epoch
        codes = []
        for asked.current_leader_epoch in (epoch - 1 if epoch else -1, epoch, epoch + 1):
            answer = await client.ask(request, 12, FetchResponse)
            codes.append(answer.responses[0].partitions[0].error_code)
        assert codes[1:] == [ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]
        assert codes[0] == (ErrorCode.FENCED_LEADER_EPOCH if epoch else ErrorCode.NONE)

    async def test_a_session_says_only_what_is_new(self, client: RawClient) -> None:
        await produce(client, batch(b"apple"))
        opening = fetch_request({0: 0, 1: 0}, session_epoch=0)
        opened = await client.ask(opening, 12, FetchResponse)
        assert opened.session_id > 0
        following = FetchRequest(max_bytes=1 << 20, session_id=opened.session_id, session_epoch=1)
        following.topics = fetch_request({0: 1}).topics
        assert (await client.ask(following, 12, FetchResponse)).responses == []
        await produce(client, batch(b"pear"), partition=1)
        following = FetchRequest(max_bytes=1 << 20, session_id=opened.session_id, session_epoch=2)
        news = await client.ask(following, 12, FetchResponse)
        assert [data.partition_index for data in news.responses[0].partitions] == [1]

    async def test_topic_ids_name_topics_since_version_13(
        self, broker: Broker, client: RawClient
    ) -> None:
        await produce(client, batch(b"apple"))
        found = broker.topics.by_name(TOPIC)
        assert found is not None
        request = fetch_request({0: 0})
        request.topics[0].topic_id = found.id
        answer = await client.ask(request, 13, FetchResponse)
        assert answer.responses[0].topic_id == found.id
        assert answer.responses[0].partitions[0].high_watermark == 1
        await broker.topics.deletion.perform([found])
        answer = await client.ask(request, 13, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    async def test_a_deleted_topic_ends_the_wait(self, broker: Broker, client: RawClient) -> None:
        client.send(fetch_request({0: 0}, max_wait_ms=60_000), 12)
        await asyncio.sleep(0.01)
        found = broker.topics.by_name(TOPIC)
        assert found is not None
        await broker.topics.deletion.perform([found])
        _, body = await asyncio.wait_for(client.receive(), 10)
        partition = FetchResponse.decode(body[1:], 12).responses[0].partitions[0]
        assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.usefixtures("topic")
class TestListOffsets:
    async def ask(
        self, client: RawClient, timestamp: int, version: int = 7
    ) -> tuple[int, int, int]:
        """Return (error code, offset, timestamp)."""
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])])
        answer = await client.ask(request, version, ListOffsetsResponse)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [
            (-1, (0, 3, -1)),
            (-2, (0, 0, -1)),
            (-3, (0, 1, 3_000)),
            (1_500, (0, 1, 3_000)),
            (3_001, (0, -1, -1)),
        ],
    )
    async def test_moments(
        self, client: RawClient, timestamp: int, expected: tuple[int, int, int]
    ) -> None:
        for value, at in ((b"apple", 1_000), (b"pear", 3_000), (b"plum", 2_000)):
            await produce(client, batch(value, timestamp=at))
        assert await self.ask(client, timestamp) == expected

    @pytest.mark.parametrize("version", range(1, 12))
    async def test_every_version_answers(self, client: RawClient, version: int) -> None:
        await produce(client, batch(b"apple"))
        assert await self.ask(client, -1, version) == (0, 1, -1)

    async def test_the_leader_epoch_is_that_of_the_record(
        self, broker: Broker, client: RawClient
    ) -> None:
        async def epoch_at(timestamp: int) -> int:
            partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsTopic(name=TOPIC, partitions=[partition])
            request = ListOffsetsRequest(topics=[topic])
            answer = await client.ask(request, 7, ListOffsetsResponse)
            return answer.topics[0].partitions[0].leader_epoch

        log = broker.topics.partition(TOPIC, 0)
        first = log.leader_epoch
        await produce(client, batch(b"apple", timestamp=1_000))
        # As if the broker had started again.
        log.leader_epoch = first + 1
        assert await epoch_at(-1) == first + 1
        await produce(client, batch(b"pear", timestamp=2_000))
        asked = (-2, 1_000, 1_500, -3, -1, 2_001)
        expected = [first, first, first + 1, first + 1, first + 1, -1]
        assert [await epoch_at(each) for each in asked] == expected
        log.advance_start(1)
        assert await epoch_at(-2) == first + 1

    async def test_a_moment_in_a_batch_that_nobody_can_read_is_corrupt(
        self, broker: Broker, client: RawClient
    ) -> None:
        await produce(client, batch(b"apple", timestamp=1_000))
        sent = batch(b"pear", timestamp=2_000)
        garbage = pack_batch(BatchHeader.parse(sent), bytes(len(sent) - BATCH_OVERHEAD))
        # No producer can bring it: another broker has written it.
        log = broker.topics.partition(TOPIC, 0)
        stored = log.append((garbage, BatchHeader.parse(garbage), 2_000))
        await log.durable(stored.end_offset)
        assert await self.ask(client, 500) == (0, 0, 1_000)
        for timestamp in (1_500, -3):
            assert (await self.ask(client, timestamp))[0] == ErrorCode.CORRUPT_MESSAGE
        assert await self.ask(client, -1) == (0, 2, -1)

    async def test_a_partition_that_is_named_twice_is_refused_once(self, client: RawClient) -> None:
        def asked(index: int, timestamp: int) -> ListOffsetsPartition:
            return ListOffsetsPartition(partition_index=index, timestamp=timestamp)

        twice = ListOffsetsTopic(name=TOPIC, partitions=[asked(0, -1), asked(1, -1), asked(0, -2)])
        again = ListOffsetsTopic(name=TOPIC, partitions=[asked(2, -1)])
        request = ListOffsetsRequest(topics=[twice, again])
        answer = await client.ask(request, 7, ListOffsetsResponse)
        codes = [
            (topic.name, each.partition_index, each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        ]
        refused = ErrorCode.INVALID_REQUEST
        assert codes == [(TOPIC, 1, 0), (TOPIC, 2, 0), (TOPIC, 0, refused)]

    async def test_moments_that_a_version_does_not_know(self, client: RawClient) -> None:
        assert (await self.ask(client, -3, 6))[0] == ErrorCode.UNSUPPORTED_VERSION
        assert (await self.ask(client, -99, 7))[0] == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.usefixtures("topic")
async def test_the_end_of_a_leader_epoch(broker: Broker, client: RawClient) -> None:
    await produce(client, batch(b"apple", b"pear"))
    epoch = broker.topics.partition(TOPIC, 0).leader_epoch
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]
    )
    answer = await client.ask(request, 4, OffsetForLeaderEpochResponse)
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, epoch, 2)
