"""Produce by version: structure before transactions, zstd, adds in the same step, topic ids."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.transactions.metadata import TransactionMetadata
from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import BatchHeader, Compression, SimpleRecord, build_batch
from wire.records.header import BATCH_OVERHEAD

Connect = Callable[[Broker], Awaitable[RawClient]]
FRUIT, VEGETABLES = "fruit", "vegetables"


@pytest.fixture
async def topics(broker: Broker) -> dict[str, UUID]:
    return {name: broker.topics.create(name, 2, 1, {}).id for name in (FRUIT, VEGETABLES)}


def batch(producer_id: int = 5, epoch: int = 0, sequence: int = 0, **fields: Any) -> bytearray:
    return build_batch(
        [SimpleRecord(None, b"apple", 1_000)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **{"is_transactional": True, **fields},
    )


async def produce(
    client: RawClient,
    version: int,
    *batches: tuple[str | UUID, int, bytes | bytearray],
    transactional_id: str | None = "tx",
) -> list[PartitionProduceResponse]:
    asked = []
    for topic, index, records in batches:
        data = TopicProduceData(partition_data=[PartitionProduceData(index=index, records=records)])
        if isinstance(topic, UUID):
            data.topic_id = topic
        else:
            data.name = topic
        asked.append(data)
    request = ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=asked
    )
    answer = await client.ask(request, version, ProduceResponse)
    if version >= 13:
        assert [one.topic_id for one in answer.responses] == [topic for topic, _, _ in batches]
    return [one.partition_responses[0] for one in answer.responses]


async def begin(client: RawClient) -> tuple[int, int]:
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    answer = await client.ask(request, 5, InitProducerIdResponse)
    return answer.producer_id, answer.producer_epoch


def held(broker: Broker) -> list[str]:
    txn = broker.transactions.find("tx")
    assert isinstance(txn, TransactionMetadata)
    return sorted(f"{topic}-{index}" for topic, index in txn.partitions)


def broken() -> dict[str, tuple[bytes, ErrorCode]]:
    """Return batches that say they are transactional and cannot be taken for other reasons."""
    good = bytes(batch())
    assert BatchHeader.parse(good).is_transactional
    damaged = bytearray(good)
    damaged[-1] ^= 1
    return {
        "a few bytes": (good[:10], ErrorCode.INVALID_RECORD),
        "half a header": (good[: BATCH_OVERHEAD // 2], ErrorCode.INVALID_RECORD),
        "all but a byte": (good[:-1], ErrorCode.INVALID_RECORD),
        "magic 0": (good[:16] + b"\0" + good[17:], ErrorCode.INVALID_RECORD),
        "magic 1": (good[:16] + b"\1" + good[17:], ErrorCode.INVALID_RECORD),
        "magic 3": (good[:16] + b"\3" + good[17:], ErrorCode.CORRUPT_MESSAGE),
        "a wrong CRC": (bytes(damaged), ErrorCode.CORRUPT_MESSAGE),
        "no producer": (
            bytes(batch(producer_id=-1, epoch=-1, sequence=-1)),
            ErrorCode.INVALID_RECORD,
        ),
    }


@pytest.mark.parametrize("version", [3, 8, 11, 12])
@pytest.mark.parametrize("kind", broken())
async def test_what_is_no_batch_is_told_so_before_its_transaction_is_looked_for(
    kind: str, version: int, broker: Broker, topics: dict[str, UUID], connect: Connect
) -> None:
    client = await connect(broker)
    records, code = broken()[kind]
    (answer,) = await produce(client, version, (FRUIT, 0, records))
    assert answer.error_code == code


@pytest.mark.parametrize("version", [3, 6, 7, 12])
async def test_zstd_is_for_clients_that_know_it(
    version: int, broker: Broker, topics: dict[str, UUID], connect: Connect
) -> None:
    client = await connect(broker)
    plain = build_batch([SimpleRecord(None, b"apple", 1_000)], compression=Compression.ZSTD)
    (answer,) = await produce(client, version, (FRUIT, 0, plain), transactional_id=None)
    expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert answer.error_code == expected


async def test_one_record_adds_all_partitions_of_a_request(
    broker: Broker, topics: dict[str, UUID], connect: Connect
) -> None:
    client = await connect(broker)
    producer = await begin(client)
    (log,) = (shard.log for shard in broker.transactions.store.shards if len(list(shard.state)))
    before = log.log_end_offset
    answers = await produce(
        client,
        12,
        (FRUIT, 0, batch(*producer)),
        (FRUIT, 1, batch(*producer)),
        (VEGETABLES, 1, batch(*producer)),
        ("nowhere", 0, batch(*producer)),
        ("__transaction_state", 0, batch(*producer)),
    )
    assert [one.error_code for one in answers] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert held(broker) == ["fruit-0", "fruit-1", "vegetables-1"]
    assert log.log_end_offset == before + 1


async def test_every_producer_of_a_request_answers_for_itself(
    broker: Broker, topics: dict[str, UUID], connect: Connect
) -> None:
    client = await connect(broker)
    producer_id, epoch = await begin(client)
    answers = await produce(
        client,
        12,
        (FRUIT, 0, batch(producer_id, epoch)),
        (FRUIT, 1, batch(producer_id, epoch + 1)),
        (VEGETABLES, 0, batch(producer_id + 1, epoch)),
        (VEGETABLES, 1, batch(producer_id, epoch)),
    )
    assert [one.error_code for one in answers] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.NONE,
    ]


async def test_a_fenced_producer_of_many_partitions_is_refused_at_once(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    fenced = await begin(client)
    await begin(client)
    broker.topics.create("wide", 2_000, 1, {})
    began_s = time.process_time()
    answers = await produce(
        client, 12, *(("wide", index, batch(*fenced)) for index in range(2_000))
    )
    # Each batch once asked for all 2,000 partitions: 2.3 s.
    assert time.process_time() - began_s < 1
    assert {one.error_code for one in answers} == {ErrorCode.INVALID_PRODUCER_EPOCH}


async def test_topic_ids_name_topics(
    broker: Broker, topics: dict[str, UUID], connect: Connect
) -> None:
    client = await connect(broker)
    producer = await begin(client)
    answers = await produce(
        client,
        13,
        (topics[FRUIT], 1, batch(*producer)),
        (topics[FRUIT], 7, batch(*producer)),
        (uuid4(), 0, batch(*producer)),
        (UUID(int=0), 0, batch(*producer)),
    )
    assert [one.error_code for one in answers] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert held(broker) == ["fruit-1"]
    again = await produce(client, 13, (topics[FRUIT], 1, batch(*producer)))
    assert [(one.error_code, one.base_offset) for one in again] == [(0, 0)]  # a duplicate
