"""Requests that are well-formed and wrong: each gets its Kafka error and spoils nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack_into

import pytest

from tests.magnetar.served_broker import Client, ServedBroker
from wire.error_code import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import (
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    build_marker,
    iterate_batches,
)
from wire.records.header import pack_batch

NOW_MS = 1_700_000_000_000
RECORDS = [SimpleRecord(b"k", b"v" * 50, NOW_MS), SimpleRecord(None, b"w", NOW_MS)]
GOOD, BAD = "good", "bad"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    settings = {"auto.create.topics.enable": "false", "message.max.bytes": "100000"}
    with ServedBroker(tmp_path_factory.mktemp("broker"), settings) as served:
        with Client(served.port) as client:
            topics = [
                CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in (GOOD, BAD)
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=5000)
            created = client.call(request, CreateTopicsResponse, 7)
            assert [topic.error_code for topic in created.topics] == [0, 0]
        yield served


@pytest.fixture
def client(broker: ServedBroker) -> Iterator[Client]:
    with Client(broker.port) as connected:
        yield connected
    assert broker.serves()
    assert "Traceback" not in broker.log


def produce(client: Client, *batches: tuple[str, int, bytes | bytearray | None]) -> list[int]:
    """Produce (topic, partition, batch) each; return the error codes."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=index, records=batch)]
            )
            for topic, index, batch in batches
        ],
    )
    answer = client.call(request, ProduceResponse, 9)
    return [topic.partition_responses[0].error_code for topic in answer.responses]


def with_fields(codec: Compression = Compression.NONE, /, **fields: int) -> bytearray:
    """Return a batch whose header says something else than it should, under a right CRC."""
    batch = build_batch(RECORDS, compression=codec)
    return pack_batch(BatchHeader.parse(batch)._replace(**fields), batch[61:])


def with_byte(position: int, byte: int) -> bytearray:
    batch = build_batch(RECORDS)
    batch[position] = byte
    return batch


def claiming(batch_length: int) -> bytearray:
    batch = build_batch(RECORDS)
    pack_into(">i", batch, 8, batch_length)
    return batch


def marker() -> bytearray:
    return build_marker(
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=True,
        timestamp_ms=NOW_MS,
    )


WHOLE = build_batch(RECORDS)
#: As Apache Kafka 4.3.1 answers, but that it answers nothing to null, takes the batch and drops
#: the byte after it, takes log append time, and answers UNKNOWN_SERVER_ERROR to a length of
#: billions, an unknown codec and garbage instead of a compressed stream.
REFUSED: dict[str, tuple[bytes | bytearray | None, ErrorCode]] = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "garbage": (b"\x2a" * 200, ErrorCode.CORRUPT_MESSAGE),
    "half": (WHOLE[: len(WHOLE) // 2], ErrorCode.INVALID_RECORD),
    "a byte short": (WHOLE[:-1], ErrorCode.INVALID_RECORD),
    "a byte more": (WHOLE + b"\0", ErrorCode.INVALID_RECORD),
    "two batches": (WHOLE + WHOLE, ErrorCode.INVALID_RECORD),
    "length 0": (claiming(0), ErrorCode.CORRUPT_MESSAGE),
    "length -1": (claiming(-1), ErrorCode.CORRUPT_MESSAGE),
    "length of billions": (claiming(2**31 - 1), ErrorCode.INVALID_RECORD),
    "magic 1": (with_byte(16, 1), ErrorCode.INVALID_RECORD),
    "magic 9": (with_byte(16, 9), ErrorCode.CORRUPT_MESSAGE),
    "wrong CRC": (with_byte(17, WHOLE[17] ^ 1), ErrorCode.CORRUPT_MESSAGE),
    "flipped bit": (with_byte(70, WHOLE[70] ^ 1), ErrorCode.CORRUPT_MESSAGE),
    "no records": (with_fields(record_count=0), ErrorCode.INVALID_RECORD),
    "billions of records": (with_fields(record_count=2**31 - 1), ErrorCode.INVALID_RECORD),
    "count against offsets": (with_fields(last_offset_delta=5), ErrorCode.INVALID_RECORD),
    "base offset": (with_fields(base_offset=5), ErrorCode.INVALID_RECORD),
    "control records": (with_fields(attributes=0x20), ErrorCode.INVALID_RECORD),
    "marker": (marker(), ErrorCode.INVALID_RECORD),
    "transaction without transactional id": (
        with_fields(attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "id without sequence": (with_fields(producer_id=7, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "unknown codec": (with_fields(attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "no gzip": (with_fields(attributes=1), ErrorCode.INVALID_RECORD),
    "no lz4": (with_fields(attributes=3), ErrorCode.INVALID_RECORD),
    "no zstd": (with_fields(attributes=4), ErrorCode.INVALID_RECORD),
    "log append time": (with_fields(attributes=8), ErrorCode.INVALID_TIMESTAMP),
    "too large": (
        build_batch([SimpleRecord(None, bytes(100_000), NOW_MS)]),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_bad_batch_is_refused_alone(client: Client, name: str) -> None:
    batch, code = REFUSED[name]
    before, after = WHOLE, build_batch(RECORDS, compression=Compression.LZ4)
    answers = produce(client, (GOOD, 0, before), (BAD, 0, batch), (GOOD, 0, after))
    assert answers == [0, code, 0]


def test_an_answer_names_no_more_records_than_one_batch_could_have_it_name(client: Client) -> None:
    # Without a timestamp that the topic takes. A hundred bytes each would name a thousand records.
    late = [SimpleRecord(b"", b"", NOW_MS * 1_000)] * 600
    batch = build_batch(late, compression=Compression.ZSTD)
    data = [PartitionProduceData(index=0, records=batch) for _ in range(5)]
    request = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=BAD, partition_data=data)]
    )
    answers = client.call(request, ProduceResponse, 9).responses[0].partition_responses
    assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_TIMESTAMP}
    assert [len(answer.record_errors) for answer in answers] == [600, 400, 0, 0, 0]


def test_nothing_that_was_refused_was_stored(client: Client) -> None:
    for batch, code in REFUSED.values():
        assert produce(client, (BAD, 0, batch)) == [code]
    assert fetched(client, BAD) == (ErrorCode.NONE, 0)
    assert produce(client, (BAD, 0, WHOLE)) == [0]
    assert fetched(client, BAD) == (ErrorCode.NONE, 1)


def fetched(client: Client, topic: str, offset: int = 0, partition: int = 0) -> tuple[int, int]:
    """Return the error code and the number of batches of a fetch."""
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[asked])])
    answer = client.call(request, FetchResponse, 12).responses[0].partitions[0]
    assert isinstance(answer.records, memoryview)
    return answer.error_code, len(list(iterate_batches(answer.records)))


@pytest.mark.parametrize(
    ("topic", "partition"), [("nowhere", 0), (GOOD, 1), (GOOD, -1), ("", 0), ("a/b", 0), ("..", 0)]
)
def test_unknown_partitions_are_unknown(client: Client, topic: str, partition: int) -> None:
    answers = produce(client, (GOOD, 0, WHOLE), (topic, partition, WHOLE))
    assert answers == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetched(client, topic, 0, partition)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, -2, -(2**63), 10**6, 2**63 - 1])
def test_offsets_out_of_range_are_out_of_range(client: Client, offset: int) -> None:
    assert fetched(client, GOOD, offset)[0] == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("acks", [2, -2, 2**15 - 1])
def test_strange_acks_are_refused(client: Client, acks: int) -> None:
    data = PartitionProduceData(index=0, records=WHOLE)
    topics = [TopicProduceData(name=GOOD, partition_data=[data])]
    request = ProduceRequest(acks=acks, timeout_ms=100, topic_data=topics)
    answer = client.call(request, ProduceResponse, 9)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.INVALID_REQUIRED_ACKS


def test_internal_topics_are_not_for_producers(client: Client) -> None:
    assert produce(client, ("__consumer_offsets", 0, WHOLE))[0] in {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


BAD_NAMES = ["", ".", "..", "a/b", "../../etc/passwd", "a b", "é", "a\0b", "x" * 250, "a:b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_topic_names_are_refused(client: Client, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    created = client.call(request, CreateTopicsResponse, 7)
    assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
    )
    answer = client.call(asked, MetadataResponse, 9)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("partitions", "replicas", "codes"),
    [
        (0, 1, {ErrorCode.INVALID_PARTITIONS}),
        (-2, 1, {ErrorCode.INVALID_PARTITIONS}),
        (1, 0, {ErrorCode.INVALID_REPLICATION_FACTOR}),
        (1, -2, {ErrorCode.INVALID_REPLICATION_FACTOR}),
        (2**31 - 1, 1, {ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION}),
    ],
)
def test_impossible_topics_are_refused(
    client: Client, partitions: int, replicas: int, codes: set[ErrorCode]
) -> None:
    topic = CreatableTopic(name="huge", num_partitions=partitions, replication_factor=replicas)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    created = client.call(request, CreateTopicsResponse, 7)
    assert created.topics[0].error_code in codes


@pytest.mark.parametrize(
    ("session_id", "session_epoch", "code"),
    [
        (5, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 7, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (-1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_unknown_fetch_sessions_are_told(
    client: Client, session_id: int, session_epoch: int, code: ErrorCode
) -> None:
    request = FetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        forgotten_topics_data=[ForgottenTopic(topic=GOOD, partitions=[0])],
    )
    answer = client.call(request, FetchResponse, 12)
    assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, [])
