"""Requests for what moves between nodes: they wait, and are sent away when all nodes know where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from logstore.partition.log import PartitionLog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.leadership import Move
from magnetar.storage.led_partitions import Leaving
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.nodes_in_one import two_of
from tests.magnetar.peers.test_moving_partitions import (
    commit,
    committed,
    committing,
    fetching,
    move,
    produce,
    producing,
    shard_of_group,
)
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.fetch import FetchResponse
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.offset_commit import OffsetCommitResponse
from wire.messages.produce import ProduceResponse


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[MovingNodes]:
    async with two_of(MovingNodes(tmp_path / "data")) as started:
        await started.all_see()
        yield started


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.001)


class Telling:
    """Stands in for what tells all nodes of a hand-over, and waits until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.failure: BaseException | None = None

    async def see_changes(self) -> int:
        return 0

    async def tell_changes(self) -> None:
        await self.let_go.wait()
        if self.failure is not None:
            raise self.failure


async def test_no_client_is_sent_away_before_all_nodes_know_the_next_leader(
    nodes: MovingNodes,
) -> None:
    partition, group, other = nodes.partition(0), nodes.group_id(0), nodes.group_id(1)
    assert await commit(nodes, 0, group, 7) is ErrorCode.NONE
    first = nodes.nodes[0]
    moves = []
    for name, index in (("a", partition), (CONSUMER_OFFSETS, shard_of_group(nodes, group))):
        topic = first.topics.by_name(name)
        assert topic is not None
        moves.append(Move(topic.id, index, 1))
    hand_over, telling = nodes.leader_changes(0)._hand_over, Telling()
    handing_over = asyncio.create_task(hand_over.perform(moves, telling.tell_changes))
    moving = first.topics.led.moving
    await until(lambda: moving.are_any)
    clients = [await nodes.another_client(0) for _ in range(3)]
    producing_there = asyncio.create_task(
        clients[0].ask(producing(partition, b"one"), 9, ProduceResponse)
    )
    fetching_there = asyncio.create_task(clients[1].ask(fetching(partition, 0), 12, FetchResponse))
    committing_there = asyncio.create_task(
        clients[2].ask(committing(group, 8), 8, OffsetCommitResponse)
    )
    asked: list[asyncio.Task[Any]] = [producing_there, fetching_there, committing_there]
    await until(lambda: len(moving._waiters) == len(asked))
    # What does not move is served meanwhile.
    assert await commit(nodes, 1, other, 1) is ErrorCode.NONE
    assert not any(each.done() for each in asked)
    telling.let_go.set()
    await handing_over
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    produced = (await producing_there).responses[0].partition_responses[0]
    assert produced.error_code == not_leader
    told = (await fetching_there).responses[0].partitions[0]
    assert (told.error_code, told.current_leader.leader_id) == (not_leader, 1)
    refused = (await committing_there).topics[0].partitions[0]
    assert refused.error_code == ErrorCode.NOT_COORDINATOR
    assert not moving.are_any
    await nodes.all_see()
    assert await commit(nodes, 1, group, 8) is ErrorCode.NONE
    for client in clients:
        client.close()


async def test_no_request_of_a_connection_overtakes_one_that_waits(nodes: MovingNodes) -> None:
    first = nodes.nodes[0]
    topic = first.topics.by_name("a")
    assert topic is not None
    stays, goes = topic.local[:2]
    leader_changes, telling = nodes.leader_changes(0), Telling()
    leader_changes._changes = telling
    handing_over = asyncio.create_task(leader_changes._perform([Move(topic.id, goes.partition, 1)]))
    await until(lambda: first.topics.led.moving.are_any)
    client = await nodes.client(0)
    sent = [client.send(producing(log.partition, b"one"), 9) for log in (stays, goes, stays, stays)]
    await until(lambda: first.topics.led.moving._waiters)
    await until(lambda: stays.high_watermark)
    await asyncio.sleep(0.05)
    assert stays.log_end_offset == 1
    telling.let_go.set()
    await handing_over
    async with asyncio.timeout(30):
        assert [(await client.receive())[0] for _ in sent] == sent
    assert stays.log_end_offset == 3


async def test_nothing_waits_while_another_change_is_under_way(nodes: MovingNodes) -> None:
    first, partition, over = nodes.nodes[0], nodes.partition(0), asyncio.Event()
    changing = asyncio.create_task(first.topics.changes.alone(over.wait))
    await asyncio.sleep(0)
    topic = first.topics.by_name("a")
    assert topic is not None
    handing_over = asyncio.create_task(
        nodes.leader_changes(0)._perform([Move(topic.id, partition, 1)])
    )
    await asyncio.sleep(0.05)
    assert not first.topics.led.moving.are_any
    assert await produce(nodes, 0, partition, b"one") is ErrorCode.NONE
    assert not handing_over.done()
    over.set()
    await changing
    await handing_over


async def test_a_fetch_is_told_late_also_of_a_partition_that_is_written(nodes: MovingNodes) -> None:
    first, partition = nodes.nodes[0], nodes.partition(0)
    reader, writer = await nodes.another_client(0), await nodes.client(0)
    log = first.topics.partition("a", partition)
    waiting = asyncio.create_task(reader.ask(fetching(partition, 0, 60_000), 12, FetchResponse))
    await until(lambda: log.reader._subscribers)
    leader_changes, telling = nodes.leader_changes(0), Telling()
    leader_changes._changes = telling
    topic = first.topics.by_name("a")
    assert topic is not None
    leave = first.topics.led.leave

    def append_and_leave(leaving: Iterable[Leaving]) -> list[PartitionLog]:
        log.append(log.check(batch_of(b"one"), first.clock.now_ms()))
        return leave(leaving)

    first.topics.led.leave = append_and_leave  # type: ignore[method-assign]  # as a producer may
    handing_over = asyncio.create_task(leader_changes._perform([Move(topic.id, partition, 1)]))
    await until(lambda: log.high_watermark)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    telling.let_go.set()
    await handing_over
    told = (await waiting).responses[0].partitions[0]
    assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    reader.close()
    writer.close()


@pytest.mark.parametrize("failure", [CatalogUnavailable("away"), asyncio.CancelledError()])
async def test_a_fetch_that_waits_is_told_although_the_nodes_were_not(
    nodes: MovingNodes, failure: BaseException
) -> None:
    partition = nodes.partition(0)
    client = await nodes.client(0)
    waiting = asyncio.create_task(client.ask(fetching(partition, 0, 60_000), 12, FetchResponse))
    first = nodes.nodes[0]
    log = first.topics.partition("a", partition)
    await until(lambda: log.reader._subscribers)
    leader_changes, telling = nodes.leader_changes(0), Telling()
    leader_changes._changes = telling
    topic = first.topics.by_name("a")
    assert topic is not None
    handing_over = asyncio.create_task(leader_changes._perform([Move(topic.id, partition, 1)]))
    await until(lambda: first.topics.led.moving.are_any)
    if isinstance(failure, asyncio.CancelledError):
        handing_over.cancel()
        telling.let_go.set()
    else:
        telling.failure = failure
        telling.let_go.set()
    with pytest.raises(type(failure)):
        await handing_over
    told = (await waiting).responses[0].partitions[0]
    assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_commit_waits_until_its_shard_is_loaded(nodes: MovingNodes) -> None:
    group = nodes.group_id(0)
    assert await commit(nodes, 0, group, 7) is ErrorCode.NONE
    second, loading = nodes.nodes[1], asyncio.Event()
    coordinator = second.topics.led.coordinators[CONSUMER_OFFSETS]
    load = coordinator.load

    async def load_late(log: PartitionLog) -> Callable[[], None]:
        begin = await load(log)
        await loading.wait()
        return begin

    coordinator.load = load_late  # type: ignore[method-assign]  # a gate before it
    moving = asyncio.create_task(move(nodes, CONSUMER_OFFSETS, shard_of_group(nodes, group), 1))
    await until(lambda: second.topics.led.moving.are_any)
    waiting = asyncio.create_task(commit(nodes, 1, group, 8))
    await until(lambda: second.topics.led.moving._waiters)
    assert not waiting.done()
    loading.set()
    assert await waiting is ErrorCode.NONE
    await moving
    assert await committed(nodes, 1, group) == 8


LISTS: list[tuple[str, Message, type[Message], int]] = [
    (TRANSACTION_STATE, ListTransactionsRequest(), ListTransactionsResponse, 1),
    (CONSUMER_OFFSETS, ListGroupsRequest(), ListGroupsResponse, 4),
]


@pytest.mark.parametrize(("name", "request_", "response_class", "version"), LISTS)
async def test_a_list_waits_for_the_shards_that_move(
    nodes: MovingNodes, name: str, request_: Message, response_class: type[Any], version: int
) -> None:
    first, telling = nodes.nodes[0], Telling()
    topic, moving = first.topics.by_name(name), first.topics.led.moving
    assert topic is not None
    moves = [Move(topic.id, topic.local[0].partition, 1)]
    hand_over = nodes.leader_changes(0)._hand_over
    handing_over = asyncio.create_task(hand_over.perform(moves, telling.tell_changes))
    await until(lambda: moving.are_any)
    client = await nodes.client(0)
    listing = asyncio.create_task(client.ask(request_, version, response_class))
    await until(lambda: moving._waiters)
    telling.let_go.set()
    await handing_over
    assert (await listing).error_code == ErrorCode.NONE


@pytest.mark.parametrize(("name", "request_", "response_class", "version"), LISTS)
async def test_a_list_that_would_lack_a_shard_is_refused(
    nodes: MovingNodes, name: str, request_: Message, response_class: type[Any], version: int
) -> None:
    first, client = nodes.nodes[0], await nodes.client(0)
    assert (await client.ask(request_, version, response_class)).error_code == ErrorCode.NONE
    topic = first.topics.by_name(name)
    assert topic is not None
    shard = topic.local[0].partition
    first.topics.led.coordinators[name].unload(shard)
    # As the catalog has it until the shard is loaded.
    topic.partitions[shard] = Elsewhere(0, first.epoch)
    answer = await client.ask(request_, version, response_class)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
