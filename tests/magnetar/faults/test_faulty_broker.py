"""Faults of requests, frame by frame, on a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.apis.api_versions import TELEMETRY_APIS
from magnetar.apis.registry import Api, load_apis
from magnetar.broker import Broker
from magnetar.faults.composing import FaultyBroker
from tests.magnetar.conftest import RawClient
from tests.magnetar.faults.conftest import Call
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

Connect = Callable[[Broker], Awaitable[RawClient]]
PRODUCE = 0


@pytest.fixture
async def client(faulty: FaultyBroker, connect: Connect) -> RawClient:
    """A client of a broker with the topics a and b."""
    connected = await connect(faulty.broker)
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b")
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=5000)
    answer = await connected.ask(request, 7, CreateTopicsResponse)
    assert [each.error_code for each in answer.topics] == [0, 0]
    return connected


def produce(value: bytes, topic: str = "a", acks: int = -1) -> ProduceRequest:
    batch = build_batch([SimpleRecord(None, value, 1_000)])
    data = PartitionProduceData(index=0, records=batch)
    named = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=named)


def code_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


async def end_of(client: RawClient, topic: str = "a") -> int:
    """Return how many records a topic has."""
    asked = ListOffsetsTopic(
        name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[asked])
    answer = await client.ask(request, 7, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


def served() -> dict[int, Api]:
    """Return the APIs of a broker that takes no metrics of clients."""
    return {key: api for key, api in load_apis().items() if key not in TELEMETRY_APIS}


async def test_without_a_fault_every_request_goes_the_way_of_production(
    faulty: FaultyBroker, call: Call
) -> None:
    production = served()
    assert faulty.broker.apis == production
    fault = await call("arm", kind="fail", api="Produce", error="NOT_CONTROLLER")
    changed = [key for key, api in faulty.broker.apis.items() if api is not production[key]]
    assert changed == [PRODUCE]
    await call("disarm", fault=fault)
    assert all(api is production[key] for key, api in faulty.broker.apis.items())
    assert faulty.broker.apis is not production


async def test_a_request_fails_without_its_effect_or_after_it(
    client: RawClient, call: Call
) -> None:
    error = {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "topic": "a", "times": 1}
    await call("arm", kind="fail", **error)
    refused = await client.ask(produce(b"x"), 11, ProduceResponse)
    assert code_of(refused) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await end_of(client) == 0

    await call("arm", kind="fail", is_applied=True, **error)
    refused = await client.ask(produce(b"x"), 11, ProduceResponse)
    assert code_of(refused) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await end_of(client) == 1
    assert code_of(await client.ask(produce(b"y"), 11, ProduceResponse)) == 0


async def test_a_fault_of_one_topic_leaves_the_other_alone(client: RawClient, call: Call) -> None:
    await call("arm", kind="fail", api="Produce", error="NOT_ENOUGH_REPLICAS", topic="b")
    assert code_of(await client.ask(produce(b"x", "a"), 11, ProduceResponse)) == 0
    assert code_of(await client.ask(produce(b"x", "b"), 11, ProduceResponse)) != 0
    assert await call("hits") == {"1": 1}


@pytest.mark.parametrize(("kind", "there"), [("lose_request", 0), ("lose_answer", 1)])
async def test_a_lost_request_has_no_effect_and_a_lost_answer_has_all(
    faulty: FaultyBroker, client: RawClient, connect: Connect, call: Call, kind: str, there: int
) -> None:
    await call("arm", kind=kind, api="Produce", times=1)
    client.send(produce(b"x"), 11)
    assert await client.is_closed()
    assert await end_of(await connect(faulty.broker)) == there


@pytest.mark.parametrize(("kind", "there"), [("lose_request", 0), ("lose_answer", 1)])
async def test_a_silent_loss_leaves_the_connection_open_and_unanswered(
    faulty: FaultyBroker, client: RawClient, connect: Connect, call: Call, kind: str, there: int
) -> None:
    fault = await call("arm", kind=kind, api="Produce", times=1, is_silent=True)
    client.send(produce(b"x"), 11)
    await call("wait_for_hits", fault=fault, hits=1, timeout_s=20.0)
    other = await connect(faulty.broker)
    assert await end_of(other) == there
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.receive(), 0.05)
    assert not client.reader.at_eof()
    client.close()  # A stop would wait for the answer.


async def test_requests_behind_a_delayed_one_do_not_overtake_it(
    faulty: FaultyBroker, client: RawClient, call: Call
) -> None:
    await call("arm", kind="delay", api="Produce", seconds=0.05, times=1)
    for value in (b"first", b"second", b"third"):
        client.send(produce(value), 11)
    answers = [await client.receive() for _ in range(3)]
    offsets = [
        ProduceResponse.decode(body[1:], 11).responses[0].partition_responses[0].base_offset
        for _, body in answers
    ]
    assert offsets == [0, 1, 2]
    # Nothing of the delay is left: the connection goes the short way again.
    await call("disarm", fault=1)
    assert code_of(await client.ask(produce(b"fourth"), 11, ProduceResponse)) == 0


async def test_a_connection_ends_behind_the_answer_or_at_once(
    faulty: FaultyBroker, client: RawClient, connect: Connect, call: Call
) -> None:
    other = await connect(faulty.broker)
    await call("arm", kind="disconnect", api="Produce", times=1)
    assert code_of(await client.ask(produce(b"x"), 11, ProduceResponse)) == 0
    assert await client.is_closed()
    assert await end_of(other) == 1
    await call("cut")
    assert await other.is_closed()


async def test_a_fetch_of_a_session_is_for_the_topics_that_it_remembers(
    client: RawClient, call: Call
) -> None:
    asked = [FetchTopic(topic="a", partitions=[FetchPartition(partition=0)])]
    first = FetchRequest(replica_id=-1, session_epoch=0, topics=asked)
    session = (await client.ask(first, 12, FetchResponse)).session_id
    assert session
    await call("arm", kind="fail", api="Fetch", error="KAFKA_STORAGE_ERROR", topic="b")
    await call("arm", kind="fail", api="Fetch", error="UNKNOWN_SERVER_ERROR", topic="a", times=1)
    # It names no topic: nothing has changed.
    later = FetchRequest(replica_id=-1, session_id=session, session_epoch=1)
    answer = await client.ask(later, 12, FetchResponse)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("key_type", "names"), [(0, "group"), (1, "transactional_id")])
async def test_the_search_for_a_coordinator_names_what_it_is_for(
    client: RawClient, call: Call, key_type: int, names: str
) -> None:
    error = "COORDINATOR_NOT_AVAILABLE"
    await call("arm", kind="fail", api="FindCoordinator", error=error, times=1, **{names: "x"})
    for key, code in (("y", ErrorCode.NONE), ("x", ErrorCode.COORDINATOR_NOT_AVAILABLE)):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        answer = await client.ask(request, 4, FindCoordinatorResponse)
        assert answer.coordinators[0].error_code == code


async def test_requests_are_recorded_with_what_they_name_and_their_errors(
    client: RawClient, call: Call
) -> None:
    since = await call("record", apis=["Produce", "add_partitions_to_txn"])
    await client.ask(produce(b"x", "b"), 11, ProduceResponse)
    await end_of(client)
    producer = RawProducer(client, "tx")
    assert await producer.init() == 0
    assert await producer.add() == 0
    producer.identity = producer.identity._replace(producer_epoch=7)
    assert await producer.add() != 0
    seen = await call("recorded", since=since, apis=["Produce", "add_partitions_to_txn"])
    assert [
        (each["api"], each["topics"], each["transactional_ids"], each["error"]) for each in seen
    ] == [
        ("Produce", ["b"], [], None),
        ("AddPartitionsToTxn", ["a"], ["tx"], None),
        ("AddPartitionsToTxn", ["a"], ["tx"], "PRODUCER_FENCED"),
    ]
    assert {each["client_id"] for each in seen} == {"raw"}
    await call("unrecord")
    assert await call("recorded", since=0, apis=[]) == []


@pytest.mark.parametrize(
    "settings",
    [{"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}],
)
async def test_what_is_denied_meets_faults_and_is_recorded_too(
    faulty: FaultyBroker, connect: Connect, call: Call
) -> None:
    client = await connect(faulty.broker)
    since = await call("record", apis=[])
    await call("arm", kind="fail", api="Produce", error="NOT_CONTROLLER", times=1)
    for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        assert code_of(await client.ask(produce(b"x"), 11, ProduceResponse)) == code
    seen = await call("recorded", since=since, apis=[])
    assert [each["error"] for each in seen] == ["NOT_CONTROLLER", "TOPIC_AUTHORIZATION_FAILED"]


async def test_mistakes_are_told_and_change_nothing(faulty: FaultyBroker, call: Call) -> None:
    mistakes: list[tuple[str, dict[str, Any], str]] = [
        (
            "arm",
            {"kind": "fail", "api": "Prodce", "error": "NOT_CONTROLLER"},
            "Did you mean Produce",
        ),
        ("arm", {"kind": "fail", "api": "Produce", "partition": 1}, "a fault has no partition"),
        ("record", {"apis": ["Prodce"]}, "Did you mean Produce"),
        ("fence", {"transactional_id": "x"}, "there is no transactional id 'x'"),
        ("expire_transaction", {"transactional_id": "x"}, "x has no open transaction: it is unkn"),
        ("expire_members", {"group": "g", "client_id": "c"}, "'g' has no member of client 'c'"),
        ("call_me", {}, "there is no call 'call_me'; there are arm, "),
    ]
    for name, args, told in mistakes:
        with pytest.raises(ValueError, match=told):
            await call(name, **args)
    with pytest.raises(
        TimeoutError, match="'g' has 0 members, settled, and 1 were waited for 0.01"
    ):
        await call("wait_for_group", group="g", members=1, timeout_s=0.01)
    assert faulty.broker.apis == served()


async def test_a_transaction_is_aborted_by_its_timeout_now(client: RawClient, call: Call) -> None:
    producer = RawProducer(client, "tx")
    assert await producer.init() == 0
    assert await producer.add() == 0
    assert await producer.produce(11) == 0
    await call("expire_transaction", transactional_id="tx")
    assert await producer.produce(11, sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_time_that_passes_ends_transactions_and_their_producers_are_told(
    client: RawClient, call: Call
) -> None:
    producer = RawProducer(client, "tx")
    assert await producer.init(timeout_ms=60_000) == 0
    assert await producer.add() == 0
    await call("advance", ms=59_000)
    assert await producer.produce(11) == 0
    await call("advance", ms=2_000)
    assert await producer.produce(11, sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_fenced_producer_is_told(client: RawClient, call: Call) -> None:
    producer = RawProducer(client, "tx")
    assert await producer.init() == 0
    await call("fence", transactional_id="tx")
    assert await producer.add() == ErrorCode.PRODUCER_FENCED
