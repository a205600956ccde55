"""The log names who was refused what, once a second, and who holds what others wait for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from logging import DEBUG
from typing import Any
from uuid import UUID

import pytest

from magnetar.apis import refusals
from magnetar.broker import Broker
from magnetar.logging import SHOWN_CHARACTERS_MAX, get_logger
from magnetar.storage.acls import STANDARD_AUTHORIZER
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

Connect = Callable[[Broker], Awaitable[RawClient]]


@pytest.fixture(autouse=True)
def nothing_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_written", {})


def lines(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    """Return the lines of this event since the last call."""
    written = [json.loads(one) for one in capsys.readouterr().err.splitlines() if "{" in one]
    return [one for one in written if one["event"] == event]


async def test_a_refused_batch_names_its_client_transaction_and_partition(
    broker: Broker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.topics.create("a", 1)
    producer = RawProducer(client, "tx")
    assert await producer.init() == await producer.add() == await producer.produce(11) == 0
    txn = broker.transactions.find("tx")
    assert txn is not None
    assert await producer.end(commit=True) == 0
    lines(capsys, "refused")
    assert await producer.produce(11, sequence=1) == ErrorCode.TRANSACTION_ABORTABLE
    (line,) = lines(capsys, "refused")
    assert line["client_address"].startswith("127.0.0.1")
    expected = {
        "api": "Produce",
        "version": 11,
        "client_id": "raw",
        "transactional_id": "tx",
        "txn_id": str(txn.txn_id),
        "topic": "a",
        "partition": 0,
        "level": "info",
    }
    assert expected.items() <= line.items()
    assert "TRANSACTION_ABORTABLE" in line["error"]


async def test_a_fetch_from_beyond_the_log_is_named(
    broker: Broker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.topics.create("a", 1)
    partition = FetchPartition(fetch_offset=77, partition_max_bytes=1000)
    request = FetchRequest(topics=[FetchTopic(topic="a", partitions=[partition])])
    answer = await client.ask(request, 11, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (line,) = lines(capsys, "refused")
    expected = {"api": "Fetch", "topic": "a", "partition": 0, "fetch_offset": 77}
    assert expected.items() <= line.items()


async def test_a_topic_that_a_client_names_by_its_id_is_named(
    broker: Broker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = broker.topics.create("a", 1)
    partition = FetchPartition(fetch_offset=77, partition_max_bytes=1000)
    fetch = FetchRequest(topics=[FetchTopic(topic_id=topic.id, partitions=[partition])])
    fetched = await client.ask(fetch, 13, FetchResponse)
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    data = TopicProduceData(topic_id=topic.id, partition_data=[PartitionProduceData(records=b"no")])
    produce = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
    produced = await client.ask(produce, 13, ProduceResponse)
    assert produced.responses[0].partition_responses[0].error_code != ErrorCode.NONE
    written = lines(capsys, "refused")
    assert [(line["api"], line["topic"]) for line in written] == [("Fetch", "a"), ("Produce", "a")]


async def test_a_topic_that_cannot_be_created_for_who_asks_of_it_is_named(
    start_broker: StartBroker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(await start_broker({"default.replication.factor": "3"}))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    answer = await client.ask(request, 4, MetadataResponse)
    assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    (line,) = lines(capsys, "refused")
    assert (line["api"], line["topic"]) == ("Metadata", "a")
    assert "INVALID_REPLICATION_FACTOR" in line["error"]


async def test_a_topic_that_is_gone_is_told_by_its_id(
    broker: Broker,
    client: RawClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(get_logger("server"), "level", DEBUG)
    topic_id = UUID(int=7)
    fetch = FetchRequest(topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition()])])
    fetched = await client.ask(fetch, 13, FetchResponse)
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    (line,) = lines(capsys, "refused")
    assert line["topic"] == str(topic_id)


async def test_a_line_shows_the_beginning_of_an_id_that_a_client_made_long(
    broker: Broker, client: RawClient, capsys: pytest.CaptureFixture[str]
) -> None:
    request = OffsetDeleteRequest(group_id="g" * 30_000)
    answer = await client.ask(request, 0, OffsetDeleteResponse)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (line,) = lines(capsys, "refused")
    assert line["group_id"] == "g" * 200


async def test_a_line_shows_the_beginning_of_a_topic_that_a_client_made_long(
    start_broker: StartBroker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a line of a client without rights had 30 KB, each second."""
    client = await connect(await start_broker({"authorizer.class.name": STANDARD_AUTHORIZER}))
    topic = FetchTopic(topic="t" * 30_000, partitions=[FetchPartition()])
    fetched = await client.ask(FetchRequest(topics=[topic]), 11, FetchResponse)
    refused = fetched.responses[0].partitions[0].error_code
    assert refused == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (line,) = lines(capsys, "refused")
    assert line["topic"] == "t" * 200


async def test_a_client_that_repeats_its_mistake_writes_one_line_a_second(
    start_broker: StartBroker,
    connect: Connect,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start_broker()
    producer = RawProducer(await connect(broker), "tx")
    assert await producer.init() == 0
    monkeypatch.setattr(refusals, "INTERVAL_MS", 60_000)
    for _ in range(20):
        assert await producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
    (line,) = lines(capsys, "refused")
    assert (line["api"], line["transactional_id"], line["txn_id"]) == ("EndTxn", "tx", None)
    monkeypatch.setattr(refusals, "INTERVAL_MS", 0)
    assert await producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
    (line,) = lines(capsys, "refused")
    assert line["left_out"] == 19


async def test_what_is_retried_in_the_ordinary_course_is_no_line(
    start_broker: StartBroker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start_broker({"max.active.transactions": "1"})
    broker.topics.create("a", 1)
    first = RawProducer(await connect(broker), "first")
    second = RawProducer(await connect(broker), "second")
    assert await first.init() == await second.init() == await first.add() == 0
    for _ in range(20):
        assert await second.add() == ErrorCode.CONCURRENT_TRANSACTIONS
    written = capsys.readouterr().err
    assert '"refused"' not in written
    # But who keeps the others waiting is told, once.
    told = [json.loads(one) for one in written.splitlines() if "max.active" in one]
    assert len(told) == 1
    assert (told[0]["oldest_transactional_id"], told[0]["oldest_client_id"]) == ("first", "raw")
    assert told[0]["open"] == 1


async def test_a_refused_client_is_not_taken_for_who_speaks_for_the_id(
    broker: Broker, client: RawClient, connect: Connect
) -> None:
    broker.topics.create("a", 1)
    fenced, current = RawProducer(client, "tx"), RawProducer(await connect(broker), "tx")
    assert await fenced.init() == await current.init() == await current.add() == 0
    speaks = broker.transactions.clients.of("tx")
    assert await fenced.add() == ErrorCode.PRODUCER_FENCED
    assert await fenced.produce(12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await fenced.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert broker.transactions.clients.of("tx") == speaks


async def test_of_a_long_client_id_no_more_is_kept_than_a_line_shows(
    broker: Broker, client: RawClient
) -> None:
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    client.send(request, 4, client_id="x" * 32_000)
    assert InitProducerIdResponse.decode((await client.receive())[1][1:], 4).error_code == 0
    assert broker.transactions.clients.of("tx").client_id == "x" * SHOWN_CHARACTERS_MAX
