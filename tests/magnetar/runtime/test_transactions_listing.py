"""ListTransactions, DescribeTransactions, DescribeProducers: what they show, and when."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from coordinator.transactions.listing import Filters
from coordinator.transactions.metadata import ProducerIdentity, TransactionMetadata, TxnId
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.apis.describe_producers import describe_producers
from magnetar.apis.describe_transactions import describe_transactions
from magnetar.apis.list_transactions import list_transactions
from magnetar.apis.registry import load_apis
from magnetar.runtime import patterns
from magnetar.runtime.request_context import RequestContext
from tests.magnetar.transaction_world import A0, A1, TIMEOUT_MS, World, WorldConnection, refused
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from wire.messages.list_transactions import ListTransactionsRequest
from wire.transaction_tags import CHILDREN_TAG, TXN_ID_TAG, VOTED_TAG, decode_children


@pytest.fixture
async def world() -> World:
    return World()


def handled(world: World, handler: Any, request: Any) -> Any:
    connection = WorldConnection()
    context = RequestContext(
        request.api_key, request.max_version, 1, "c", "127.0.0.1", world.now_ms, connection
    )
    return handler(world.services(), request, context)


async def listed(world: World, **filters: Any) -> dict[str, str]:
    request = ListTransactionsRequest(**filters)
    response = await world.until(handled(world, list_transactions, request))
    return {
        state.transactional_id: state.transaction_state for state in response.transaction_states
    }


async def described(world: World, *transactional_ids: str) -> list[TransactionState]:
    request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    response = await world.until(handled(world, describe_transactions, request))
    states: list[TransactionState] = response.transaction_states
    return states


async def partition(world: World, topic: str = "a", index: int = 0) -> PartitionResponse:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[index])])
    response = await world.until(handled(world, describe_producers, request))
    found: PartitionResponse = response.topics[0].partitions[0]
    return found


async def test_nothing_is_listed_before_there_is_a_coordinator(world: World) -> None:
    assert await listed(world) == {}
    (state,) = await described(world, "tx")
    assert state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_pattern_must_match_the_whole_id(world: World) -> None:
    await world.init("orders-1")
    await world.init("orders-22")
    assert await listed(world, transactional_id_pattern="orders-.") == {"orders-1": "Empty"}
    assert len(await listed(world, transactional_id_pattern="")) == 2


@pytest.mark.parametrize("pattern", ["(", "*", "(?=a).*", r"(.)\1", ".*+", "a" * 1_000_000])
async def test_what_cannot_be_matched_in_linear_time_is_refused(pattern: str, world: World) -> None:
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        await listed(world, transactional_id_pattern=pattern)


async def test_a_pattern_made_to_explode_does_not(world: World) -> None:
    await world.init("a" * 10_000)
    assert await listed(world, transactional_id_pattern="(a*)*(a|aa)+(a?){500}b") == {}


async def test_nobody_waits_for_a_pattern(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, compile_pattern = threading.Event(), patterns.compile_pattern

    def held(pattern: str) -> object:
        assert gate.wait(60)
        return compile_pattern(pattern)

    monkeypatch.setattr(patterns, "compile_pattern", held)
    await world.init("a")
    request = ListTransactionsRequest(transactional_id_pattern="a")
    listing = asyncio.ensure_future(world.until(handled(world, list_transactions, request)))
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not listing.done()
    gate.set()
    (found,) = (await listing).transaction_states
    assert found.transactional_id == "a"


async def test_unknown_states_are_reported_beside_what_the_others_found(world: World) -> None:
    await world.begin(A0)
    request = ListTransactionsRequest(state_filters=["Foo", "Ongoing"])
    response = await world.until(handled(world, list_transactions, request))
    assert response.unknown_state_filters == ["Foo"]
    assert [state.transactional_id for state in response.transaction_states] == ["tx"]
    assert await listed(world, state_filters=["Foo"]) == {}


async def test_what_is_not_durable_is_not_shown(world: World) -> None:
    identity = await world.init()
    adding = asyncio.ensure_future(world.coordinator.holds.add_partitions("tx", identity, {A0}))
    request = DescribeTransactionsRequest(transactional_ids=["tx"])
    showing = asyncio.ensure_future(handled(world, describe_transactions, request))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not showing.done()
    await world.settle()
    assert showing.result().transaction_states[0].transaction_state == "Ongoing"
    await adding


async def test_what_has_ended_is_shown_as_ended(world: World) -> None:
    identity = await world.begin(A0)
    await world.answered(world.end("tx", identity, commit=True, transaction_version=2))
    # Its markers are durable, its COMPLETE_* is still to be appended.
    assert world.state().label == "PrepareCommit"
    (state,) = await described(world, "tx")
    assert state.transaction_state == "CompleteCommit"


async def test_a_description_says_all_and_carries_the_txn_id(world: World) -> None:
    identity = await world.begin(A1, A0)
    unknown, empty, state = await described(world, "unknown", "", "tx")
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (state.producer_id, state.producer_epoch) == identity
    assert (state.transaction_timeout_ms, state.transaction_start_time_ms) == (
        TIMEOUT_MS,
        world.now_ms,
    )
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("a", [0, 1])]
    ((tag, txn_id),) = state.unknown_tags
    assert tag == TXN_ID_TAG
    txn = world.coordinator.find("tx")
    assert txn is not None
    assert TxnId.from_bytes(txn_id) == txn.txn_id


async def test_before_the_first_transaction_there_is_no_txn_id(world: World) -> None:
    await world.init()
    (state,) = await described(world, "tx")
    assert (state.transaction_state, state.transaction_start_time_ms) == ("Empty", -1)
    assert state.unknown_tags == ()


async def test_a_vote_is_told_as_a_state_that_kafkas_clients_know(world: World) -> None:
    for child in ("p~>open", "p~>voted"):
        identity = await world.init(child)
        await world.until(world.coordinator.holds.add_partitions(child, identity, {A0}))
    await world.until(world.end(child, identity, commit=True))
    assert await listed(world) == {"p~>voted": "Ongoing", "p~>open": "Ongoing"}
    assert len(await listed(world, state_filters=["Ongoing"])) == 2
    assert await listed(world, state_filters=["Voted"]) == {"p~>voted": "Ongoing"}
    voted, still_open = await described(world, "p~>voted", "p~>open")
    assert voted.transaction_state == still_open.transaction_state == "Ongoing"
    assert VOTED_TAG in dict(voted.unknown_tags)
    assert VOTED_TAG not in dict(still_open.unknown_tags)


async def test_votes_are_listed_without_a_look_at_ids_that_are_idle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's sink lists the votes of each batch, beside all the tasks of the last hour."""
    for child in ("p~>idle", "p~>open", "p~>voted"):
        identity = await world.init(child)
        if child != "p~>idle":
            await world.until(world.coordinator.holds.add_partitions(child, identity, {A0}))
    await world.until(world.end(child, identity, commit=True))
    looked_at: list[str] = []
    admit = Filters.admit

    def noted(filters: Filters, txn: TransactionMetadata, now_ms: int) -> bool:
        looked_at.append(txn.transactional_id)
        return admit(filters, txn, now_ms)

    monkeypatch.setattr(Filters, "admit", noted)
    assert await listed(world, state_filters=["Voted"]) == {"p~>voted": "Ongoing"}
    assert looked_at == ["p~>voted"]
    assert len(await listed(world, state_filters=["Ongoing"])) == 2
    assert len(await listed(world, state_filters=["Voted", "Empty"])) == 2
    assert len(await listed(world)) == 3


async def test_a_vote_that_is_decided_and_not_yet_complete_is_not_listed_as_one(
    world: World,
) -> None:
    for name in ("p~>voted", "p"):
        identity = await world.init(name)
        await world.until(world.coordinator.holds.add_partitions(name, identity, {A0}))
        ending = world.end(name, identity, commit=True, transaction_version=2)
        await world.answered(ending)
    assert world.state("p~>voted").label == "Voted"
    assert await listed(world, state_filters=["Voted"]) == {}


async def test_children_are_told_also_of_a_parent_that_nobody_has_seen(world: World) -> None:
    for child in ("p~>two", "p~>one"):
        identity = await world.init(child)
        await world.until(world.coordinator.holds.add_partitions(child, identity, {A0}))
    await world.init("p~>idle")
    (parent,) = await described(world, "p")
    assert parent.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert decode_children(dict(parent.unknown_tags)[CHILDREN_TAG]) == ["p~>one", "p~>two"]


async def test_producers_are_shown_with_what_they_have_open(world: World) -> None:
    identity = await world.begin(A0)
    (producer,) = (await partition(world)).active_producers
    assert producer == ProducerState(
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        last_sequence=0,
        last_timestamp=1_000,
        coordinator_epoch=-1,
        current_txn_start_offset=0,
    )
    await world.until(world.end("tx", identity, commit=False))
    (producer,) = (await partition(world)).active_producers
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (0, -1)
    assert producer.last_timestamp == world.now_ms


async def test_a_producer_of_which_only_a_marker_is_there_has_no_sequence(world: World) -> None:
    identity = ProducerIdentity(7, 3)
    world.logs[A0].append_marker(TransactionMarker(*identity, 0, commit=False), world.now_ms)
    (producer,) = (await partition(world)).active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, -1)


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("a", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("no name", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_an_unknown_partition_answers_for_itself(
    topic: str, index: int, code: ErrorCode, world: World
) -> None:
    found = await partition(world, topic, index)
    assert (found.partition_index, found.error_code, found.active_producers) == (index, code, [])


async def test_what_is_named_twice_is_answered_once(world: World) -> None:
    await world.begin(A0)
    assert len(await described(world, "tx", "unknown", "tx", "unknown")) == 2
    asked = TopicRequest(name="a", partition_indexes=[0, 1, 0])
    request = DescribeProducersRequest(topics=[asked, asked])
    response = await world.until(handled(world, describe_producers, request))
    (topic,) = response.topics
    assert [partition.partition_index for partition in topic.partitions] == [0, 1]


def test_a_failure_is_answered_to_each_thing_asked_for() -> None:
    failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    asked = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[3])])
    producers = load_apis()[asked.api_key].refuse(asked, 0, failure)
    assert isinstance(producers, DescribeProducersResponse)
    assert producers.topics[0].partitions[0].error_code == failure.code
    named = DescribeTransactionsRequest(transactional_ids=["tx"])
    transactions = load_apis()[named.api_key].refuse(named, 0, failure)
    assert isinstance(transactions, DescribeTransactionsResponse)
    assert transactions.transaction_states[0].error_code == failure.code


async def test_a_child_is_told_of_once_its_begin_is_durable(world: World) -> None:
    """The second child begins while the disk is at the begin of the first one."""
    one, two = await world.init("p~>one"), await world.init("p~>two")
    begun = [asyncio.ensure_future(world.coordinator.holds.add_partitions("p~>one", one, {A0}))]
    await asyncio.sleep(0)
    request = DescribeTransactionsRequest(transactional_ids=["p"])
    describing = asyncio.ensure_future(handled(world, describe_transactions, request))
    for _ in range(10):
        await asyncio.sleep(0)
    begun.append(asyncio.ensure_future(world.coordinator.holds.add_partitions("p~>two", two, {A0})))
    while not describing.done():
        world.step()
        await asyncio.sleep(0)
    (parent,) = describing.result().transaction_states
    assert decode_children(dict(parent.unknown_tags)[CHILDREN_TAG]) == ["p~>one", "p~>two"]
    log = world.coordinator.store.shard_of("p").log
    assert log.reader.high_watermark == log.log_end_offset
    await asyncio.gather(*begun)
