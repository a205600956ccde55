"""Produce that waits between its batches: in order, and holding up no other.

For a check in a thread, and for the turns of others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from logstore.partition import client_batch, log
from logstore.partition.client_batch import QUICK, WHOLE, CheckedBatch, Effort, check_batch
from logstore.partition.log_config import LogConfig
from magnetar.apis import produce
from magnetar.broker import Broker
from magnetar.storage.topic import Topic
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import (
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    iterate_records,
    recompressed,
)
from wire.records.header import pack_batch

TOPIC = "fruit"
Connect = Callable[[Broker], Awaitable[RawClient]]


class Gate:
    """Holds up checks in threads until it is opened; counts those that have begun."""

    def __init__(self, held: Effort | None = None) -> None:
        """`held`: of this effort alone; None: of any that runs in threads."""
        self.held = held
        self.opened = threading.Event()
        self.begun = 0

    def check(
        self, batch: bytearray | memoryview, config: LogConfig, now_ms: int, effort: Effort
    ) -> CheckedBatch:
        if effort is self.held or (self.held is None and effort is not QUICK):
            self.begun += 1
            assert self.opened.wait(60)
        return check_batch(batch, config, now_ms, effort)

    async def until_begun(self, count: int) -> None:
        while self.begun < count:
            await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(log, "check_batch", made.check)
    yield made
    made.opened.set()


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.topics.create(TOPIC, 3)
    return TOPIC


def large(*, sequence: int = -1, producer: tuple[int, int] = (-1, -1), **fields: bool) -> bytes:
    """Return a batch of three records whose check takes long: a stream of 150 kB."""
    values = [os.urandom(50_000) for _ in range(3)]
    return batch(values, Compression.GZIP, sequence=sequence, producer=producer, **fields)


def batch(
    values: Sequence[bytes],
    codec: Compression = Compression.NONE,
    *,
    sequence: int = -1,
    producer: tuple[int, int] = (-1, -1),
    is_transactional: bool = False,
) -> bytes:
    return bytes(
        build_batch(
            [SimpleRecord(b"k", value, 1_000) for value in values],
            compression=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


def request(*batches: bytes, acks: int = -1, transactional_id: str | None = None) -> ProduceRequest:
    """A request that appends one batch to each partition."""
    data = [PartitionProduceData(index=index, records=one) for index, one in enumerate(batches)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        transactional_id=transactional_id,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )


async def answers(client: RawClient) -> list[PartitionProduceResponse]:
    _, body = await client.receive()
    return ProduceResponse.decode(body[1:], 12).responses[0].partition_responses


def values_of(broker: Broker, partition: int = 0) -> list[bytes | None]:
    reader = broker.topics.partition(TOPIC, partition)
    return [
        record.value
        for _, stored in reader.ledger.batches.iterate(0)
        for record in iterate_records(stored)
    ]


@pytest.mark.usefixtures("topic")
async def test_a_connections_batches_keep_their_order(
    broker: Broker, client: RawClient, gate: Gate
) -> None:
    identity = (7, 0)
    sequence = 0
    for number in range(6):
        if number % 3 == 0:
            client.send(request(large(sequence=sequence, producer=identity)), 12)
            sequence += 3
        else:
            small = batch([b"small"], sequence=sequence, producer=identity)
            client.send(request(small), 12)
            sequence += 1
    await gate.until_begun(1)
    assert broker.topics.partition(TOPIC, 0).log_end_offset == 0
    gate.opened.set()
    found = [(await answers(client))[0] for _ in range(6)]
    assert [(one.error_code, one.base_offset) for one in found] == [
        (0, 0),
        (0, 3),
        (0, 4),
        (0, 5),
        (0, 8),
        (0, 9),
    ]


@pytest.mark.usefixtures("topic")
async def test_other_connections_are_served_meanwhile(
    broker: Broker, client: RawClient, connect: Connect, gate: Gate
) -> None:
    client.send(request(large()), 12)
    await gate.until_begun(1)
    other = await connect(broker)
    assert (await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code == 0
    other.send(request(batch([b"small"])), 12)
    assert (await answers(other))[0].base_offset == 0
    gate.opened.set()
    assert (await answers(client))[0].base_offset == 1
    other.close()


@pytest.mark.usefixtures("topic")
async def test_ordinary_batches_wait_for_none_that_takes_seconds(
    broker: Broker, client: RawClient, connect: Connect, gate: Gate
) -> None:
    gate.held = WHOLE
    many = build_batch([SimpleRecord(b"k", b"v", 1_000, [("", None)] * 400_000)])
    others = [await connect(broker) for _ in range(3)]
    for each in (client, *others):
        each.send(request(bytes(many)), 12)
    await gate.until_begun(1)
    ordinary = await connect(broker)
    ordinary.send(request(large()), 12)
    assert (await answers(ordinary))[0].error_code == ErrorCode.NONE
    gate.opened.set()
    for each in (client, *others):
        assert (await answers(each))[0].error_code == ErrorCode.NONE
    for each in (ordinary, *others):
        each.close()


@pytest.mark.parametrize(
    "records",
    [
        [SimpleRecord(b"k", b"v", 1_000, [("", None)] * 100_000)],
        [SimpleRecord(b"k", b"v", 20_000 * (place % 2)) for place in range(10_000)],
    ],
    ids=["one of many headers", "unusual"],
)
@pytest.mark.usefixtures("topic")
async def test_records_that_take_long_are_checked_in_a_thread(
    client: RawClient, gate: Gate, records: list[SimpleRecord]
) -> None:
    client.send(request(bytes(build_batch(records))), 12)
    await gate.until_begun(1)
    gate.opened.set()
    assert (await answers(client))[0].error_code == ErrorCode.NONE


@pytest.mark.usefixtures("topic")
async def test_records_that_take_too_long_are_refused(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = WHOLE._replace(steps=100_000)
    monkeypatch.setattr(client_batch, "WHOLE", few)
    monkeypatch.setattr(produce, "WHOLE", few)
    monkeypatch.setattr(produce, "ORDINARY", QUICK)
    records = [SimpleRecord(b"k", b"v", 1_000, [("", None)] * 100_000)]
    client.send(request(bytes(build_batch(records)), batch([b"small"])), 12)
    refused, taken = await answers(client)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert refused.error_message == "record 0 is as far as the check of this batch comes"
    assert taken.error_code == ErrorCode.NONE


@pytest.mark.usefixtures("topic")
async def test_a_refusal_in_the_thread_refuses_no_other_partition(client: RawClient) -> None:
    client.send(request(large(), rotten(large()), batch([b"small"])), 12)
    codes = [one.error_code for one in await answers(client)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NONE]


def rotten(whole: bytes) -> bytes:
    """Return the batch with a rotten byte near the end of its stream, and a right CRC."""
    body = bytearray(whole[61:])
    body[-20] ^= 0xFF
    return bytes(pack_batch(BatchHeader.parse(whole), body))


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.usefixtures("topic")
async def test_a_producer_that_wants_no_answer_may_close_at_once(
    broker: Broker, client: RawClient, gate: Gate, is_reset: bool
) -> None:
    client.send(request(large(), acks=0), 12)
    client.send(request(batch([b"small"]), acks=0), 12)
    await client.writer.drain()
    await gate.until_begun(1)
    if is_reset:
        connected = client.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    # Otherwise its requests are done before it is forgotten.
    while is_reset and broker.server.connection_count:
        await asyncio.sleep(0.001)
    gate.opened.set()
    while broker.topics.partition(TOPIC, 0).high_watermark < 4:
        await asyncio.sleep(0.001)
    assert values_of(broker)[-1] == b"small"
    while broker.server.connection_count:
        await asyncio.sleep(0.001)


@pytest.mark.usefixtures("topic")
async def test_a_transaction_that_ends_meanwhile_takes_no_more(
    broker: Broker, client: RawClient, connect: Connect, gate: Gate
) -> None:
    init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    answer = await client.ask(init, 5, InitProducerIdResponse)
    producer = (answer.producer_id, answer.producer_epoch)
    first = batch([b"in time"], sequence=0, producer=producer, is_transactional=True)
    late = large(sequence=0, producer=producer, is_transactional=True)
    client.send(request(first, late, transactional_id="tx"), 12)
    await gate.until_begun(1)
    other = await connect(broker)
    end = EndTxnRequest(
        transactional_id="tx",
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=True,
    )
    assert (await other.ask(end, 5, EndTxnResponse)).error_code == 0
    gate.opened.set()
    codes = [one.error_code for one in await answers(client)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH]
    late_log = broker.topics.partition(TOPIC, 1)
    assert not late_log.transactions.is_open(producer[0])
    assert all(header.is_control for header in late_log.ledger.batches.headers(0))
    other.close()


@pytest.mark.usefixtures("topic")
async def test_a_topic_that_is_deleted_meanwhile_takes_no_more(
    broker: Broker, client: RawClient, gate: Gate
) -> None:
    found = broker.topics.by_name(TOPIC)
    assert found is not None
    client.send(request(large()), 12)
    await gate.until_begun(1)
    await broker.topics.deletion.perform([found])
    broker.topics.create(TOPIC, 3)
    gate.opened.set()
    assert (await answers(client))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert values_of(broker) == []


async def test_recompression_is_done_aside(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*arguments: object) -> bytearray:
        threads.append(threading.current_thread().name)
        return recompressed(*arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("logstore.partition.client_batch.recompressed", noted)
    broker.topics.create(TOPIC, 1, configs={"compression.type": "gzip"})
    client.send(request(batch([b"v" * 100_000])), 12)
    client.send(request(batch([b"small"])), 12)
    assert [(await answers(client))[0].base_offset for _ in range(2)] == [0, 1]
    assert threads[0].startswith("batch-checks")
    stored = [header.compression for header in log_of(broker).ledger.batches.headers(0)]
    assert stored == [Compression.GZIP] * 2


def log_of(broker: Broker) -> log.PartitionLog:
    return broker.topics.partition(TOPIC, 0)


@pytest.fixture
def late_turns(broker: Broker, short_turns: None, topic: str) -> Iterator[ExitStack]:
    """Turns of two partitions. The second one begins when this is closed."""
    with ExitStack() as held:
        held.enter_context(broker.turns.aside())
        yield held


async def until_first(broker: Broker) -> None:
    while not log_of(broker).log_end_offset:
        await asyncio.sleep(0.001)


async def test_others_have_their_turn_between_many_batches(
    broker: Broker, client: RawClient, connect: Connect, late_turns: ExitStack
) -> None:
    client.send(request(*[batch([b"many"])] * 3), 12)
    client.send(request(batch([b"next"])), 12)
    await until_first(broker)
    other = await connect(broker)
    assert (await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code == 0
    ends = [partition.log_end_offset for partition in topic_of(broker).local]
    assert ends == [1, 1, 0]
    late_turns.close()
    assert [one.base_offset for one in await answers(client)] == [0, 0, 0]
    assert [one.base_offset for one in await answers(client)] == [1]
    other.close()


async def test_a_transaction_that_ends_between_two_batches_takes_no_more(
    broker: Broker, client: RawClient, connect: Connect, late_turns: ExitStack
) -> None:
    init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    answer = await client.ask(init, 5, InitProducerIdResponse)
    producer = (answer.producer_id, answer.producer_epoch)
    one = batch([b"x"], sequence=0, producer=producer, is_transactional=True)
    client.send(request(one, one, one, transactional_id="tx"), 12)
    await until_first(broker)
    other = await connect(broker)
    end = EndTxnRequest(
        transactional_id="tx",
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=True,
    )
    assert (await other.ask(end, 5, EndTxnResponse)).error_code == 0
    late_turns.close()
    codes = [one.error_code for one in await answers(client)]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH]
    assert not broker.topics.partition(TOPIC, 2).transactions.is_open(producer[0])
    other.close()


async def test_a_topic_that_is_made_anew_between_two_batches_is_another_one(
    broker: Broker, client: RawClient, late_turns: ExitStack
) -> None:
    former = topic_of(broker)
    client.send(request(*[batch([b"x"])] * 3), 12)
    await until_first(broker)
    await broker.topics.deletion.perform([former])
    made_anew = broker.topics.create(TOPIC, 2)
    late_turns.close()
    codes = [one.error_code for one in await answers(client)]
    assert codes[2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.log_end_offset for one in made_anew.local] == [0, 0]


def topic_of(broker: Broker) -> Topic:
    found = broker.topics.by_name(TOPIC)
    assert found is not None
    return found
