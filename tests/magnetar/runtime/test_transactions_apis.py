"""The transaction APIs: what each version of a request is answered, as Apache Kafka 4.3 answers."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.partition.log import PartitionLog
from magnetar.apis.add_offsets_to_txn import add_offsets_to_txn
from magnetar.apis.add_partitions_to_txn import add_partitions_to_txn
from magnetar.apis.end_txn import end_txn
from magnetar.apis.init_producer_id import init_producer_id
from magnetar.apis.registry import load_apis
from magnetar.apis.write_txn_markers import write_txn_markers
from magnetar.runtime.request_context import RequestContext
from tests.magnetar.ending import when_made
from tests.magnetar.transaction_world import A0, World, WorldConnection
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from wire.messages.end_txn import EndTxnRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

Codes = dict[tuple[str, int], ErrorCode]


@pytest.fixture
async def world() -> World:
    return World()


async def call(world: World, handler: Any, request: Any, version: int) -> Any:
    connection = WorldConnection()
    context = RequestContext(
        request.api_key, version, 1, "client", "127.0.0.1", world.now_ms, connection
    )
    try:
        return await world.until(when_made(handler(world.services(), request, context)))
    except KafkaError as refusal:
        return load_apis()[request.api_key].refuse(request, version, refusal)


async def initialised(world: World, version: int = 4, **fields: Any) -> Any:
    fields = {"transactional_id": "tx", "transaction_timeout_ms": 1000, **fields}
    return await call(world, init_producer_id, InitProducerIdRequest(**fields), version)


def topics_of(*partitions: tuple[str, int]) -> list[AddPartitionsToTxnTopic]:
    names = dict.fromkeys(name for name, _ in partitions)
    return [
        AddPartitionsToTxnTopic(
            name=name, partitions=[index for topic, index in partitions if topic == name]
        )
        for name in names
    ]


def codes_of(results: list[AddPartitionsToTxnTopicResult]) -> Codes:
    return {
        (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
        for topic in results
        for one in topic.results_by_partition
    }


async def added(
    world: World, identity: ProducerIdentity, *partitions: tuple[str, int], version: int = 3
) -> Codes:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=topics_of(*partitions),
    )
    response = await call(world, add_partitions_to_txn, request, version)
    return codes_of(response.results_by_topic_v3_and_below)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
async def test_a_refused_producer_gets_no_identity(
    fields: dict[str, Any], code: ErrorCode, world: World
) -> None:
    answer = await initialised(world, **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


async def test_a_producer_without_transactions_needs_no_timeout(world: World) -> None:
    answer = await initialised(world, transactional_id=None, transaction_timeout_ms=0)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 1000, 0)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
async def test_a_fenced_claim_is_named_by_version(
    version: int, code: ErrorCode, world: World
) -> None:
    identity = await world.init()
    await world.init()
    answer = await initialised(world, version, producer_id=identity[0], producer_epoch=identity[1])
    assert answer.error_code == code


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.PRODUCER_FENCED),
    ],
)
async def test_a_fenced_producer_is_told_so_by_version(
    version: int, code: ErrorCode, world: World
) -> None:
    producer_id, epoch = await world.init()
    zombie = ProducerIdentity(producer_id, epoch - 1)
    assert await added(world, zombie, A0, version=version) == {A0: code}
    fields: dict[str, Any] = {"transactional_id": "tx", "producer_id": producer_id}
    fields["producer_epoch"] = zombie.producer_epoch
    offsets = AddOffsetsToTxnRequest(group_id="group", **fields)
    assert (await call(world, add_offsets_to_txn, offsets, version)).error_code == code
    end = EndTxnRequest(committed=True, **fields)
    assert (await call(world, end_txn, end, version)).error_code == code


async def test_where_one_partition_is_missing_nothing_is_added(world: World) -> None:
    identity = await world.init()
    missing = TopicPartition("a", 9)
    assert await added(world, identity, A0, missing, ("b", 0)) == {
        A0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    end = EndTxnRequest(transactional_id="tx", producer_id=1000, committed=True)
    assert (await call(world, end_txn, end, 4)).error_code == ErrorCode.INVALID_TXN_STATE


async def test_clients_hold_no_partition_of_the_coordinators(world: World) -> None:
    identity = await world.init()
    offsets = TopicPartition("__consumer_offsets", 0)
    assert await added(world, identity, A0, offsets) == {
        A0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        offsets: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


async def test_a_whole_transaction_through_its_requests(world: World) -> None:
    identity = await world.init()
    assert await added(world, identity, A0) == {A0: ErrorCode.NONE}
    world.produce(identity, A0)
    fields: dict[str, Any] = {"transactional_id": "tx", "producer_id": 1000, "producer_epoch": 0}
    offsets = AddOffsetsToTxnRequest(group_id="group", **fields)
    assert (await call(world, add_offsets_to_txn, offsets, 3)).error_code == 0
    end = EndTxnRequest(committed=True, **fields)
    assert (await call(world, end_txn, end, 4)).error_code == 0
    assert world.stable(A0)
    assert world.markers(A0) == [("COMMIT", 0)]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_broker_may_add_and_verify_many_transactions(version: int, world: World) -> None:
    await world.init()

    def transaction(partition: tuple[str, int], verify: bool) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id="tx",
            producer_id=1000,
            verify_only=verify,
            topics=topics_of(partition),
        )

    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction(A0, False),
            transaction(A0, True),
            transaction(("a", 1), True),
        ]
    )
    response = await call(world, add_partitions_to_txn, request, version)
    assert [codes_of(one.topic_results) for one in response.results_by_transaction] == [
        {A0: ErrorCode.NONE},
        {A0: ErrorCode.NONE},
        {("a", 1): ErrorCode.TRANSACTION_ABORTABLE},
    ]


@pytest.mark.parametrize(
    ("fields", "index", "code"),
    [
        ({}, 0, ErrorCode.NONE),
        ({}, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"producer_epoch": -1}, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        # No producer at all: Kafka's tools could not read a log with such a marker.
        ({"producer_id": -1}, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"producer_id": 7, "producer_epoch": -1}, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"coordinator_epoch": 1}, 0, ErrorCode.INVALID_REQUEST),  # one that has not begun
    ],
)
async def test_each_partition_answers_for_its_marker(
    fields: dict[str, Any], index: int, code: ErrorCode, world: World
) -> None:
    await world.begin(A0)
    assert await write_marker(world, index, **fields) == code
    assert world.stable(A0) is (code is ErrorCode.NONE)


async def write_marker(world: World, index: int, **fields: Any) -> int:
    """Return what a partition answers for a marker of the first producer."""
    marker = WritableTxnMarker(
        **{"producer_id": 1000, "producer_epoch": 0, "coordinator_epoch": 0, **fields},
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[index])],
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    response = await call(world, write_txn_markers, request, 1)
    (result,) = response.markers[0].topics[0].partitions
    assert result.partition_index == index
    return int(result.error_code)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
async def test_a_marker_whose_partition_goes_meanwhile_is_told_whether_it_moves(
    code: ErrorCode, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def durable(log: PartitionLog, end_offset: int) -> None:
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            log.reader.move(code)
        raise log.reader.gone

    await world.begin(A0)
    monkeypatch.setattr(PartitionLog, "durable", durable)
    assert await write_marker(world, 0) == code
