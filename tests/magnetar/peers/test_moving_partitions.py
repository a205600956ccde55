"""Partitions and coordinators that move between nodes while clients use them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.transactions import joint
from coordinator.transactions.metadata import State, TopicPartition
from logstore.remote.commit_store import NodeFenced
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.leadership import Move
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.nodes_in_one import two_of
from wire.error_code import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[MovingNodes]:
    async with two_of(MovingNodes(tmp_path / "data")) as started:
        await started.all_see()
        yield started


async def move(nodes: MovingNodes, topic: str, partition: int, target: int) -> None:
    """Hand one partition over to another node; return once that node leads it."""
    owner = nodes.any().nodes.leader_of(topic, partition)
    assert owner is not None and owner != target
    found = nodes.nodes[owner].topics.by_name(topic)
    assert found is not None
    await nodes.leader_changes(owner)._perform([Move(found.id, partition, target)])
    await nodes.all_see()


def producing(partition: int, *values: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch_of(*values))
    return ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name="a", partition_data=[data])],
    )


async def produce(nodes: MovingNodes, node_id: int, partition: int, *values: bytes) -> ErrorCode:
    client = await nodes.client(node_id)
    answer = await client.ask(producing(partition, *values), 9, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def fetching(partition: int, offset: int, wait_ms: int = 0) -> FetchRequest:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=10_000)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=10_000,
        topics=[FetchTopic(topic="a", partitions=[asked])],
    )


async def test_a_partition_goes_with_its_records_and_a_higher_epoch(nodes: MovingNodes) -> None:
    partition = nodes.partition(0)
    assert await produce(nodes, 0, partition, b"one") is ErrorCode.NONE
    before = nodes.log(0).leader_epoch
    await move(nodes, "a", partition, 1)
    assert await produce(nodes, 0, partition, b"two") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await produce(nodes, 1, partition, b"two") is ErrorCode.NONE
    log = nodes.nodes[1].topics.partition("a", partition)
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    assert log.leader_epoch > max(before, nodes.nodes[0].epoch, nodes.nodes[1].epoch)
    topic = nodes.nodes[0].topics.by_name("a")
    assert topic is not None and topic.partitions[partition] == Elsewhere(1, log.leader_epoch)
    await move(nodes, "a", partition, 0)
    assert await produce(nodes, 0, partition, b"three") is ErrorCode.NONE
    assert nodes.nodes[0].topics.partition("a", partition).log_end_offset == 3


async def test_a_fetch_that_waits_is_told_of_the_next_leader(nodes: MovingNodes) -> None:
    partition = nodes.partition(0)
    await produce(nodes, 0, partition, b"one")
    client = await nodes.client(0)
    waiting = asyncio.create_task(client.ask(fetching(partition, 1, 20_000), 12, FetchResponse))
    while not nodes.nodes[0].topics.partition("a", partition).reader._subscribers:
        await asyncio.sleep(0)
    await move(nodes, "a", partition, 1)
    found = (await waiting).responses[0].partitions[0]
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = nodes.nodes[1].topics.partition("a", partition)
    assert found.current_leader.leader_id == 1
    assert found.current_leader.leader_epoch == leader.leader_epoch


def count_calls(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], of: Any, name: str) -> None:
    """Count the calls of a method of one object."""
    method = getattr(of, name)

    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return method(*arguments)

    monkeypatch.setattr(of, name, counted)


async def test_what_was_appended_before_a_hand_over_is_answered(nodes: MovingNodes) -> None:
    partition = nodes.partition(0)
    client = await nodes.client(0)
    asking = asyncio.create_task(client.ask(producing(partition, b"one"), 9, ProduceResponse))
    while not nodes.nodes[0].topics.partition("a", partition).log_end_offset:
        await asyncio.sleep(0)
    await move(nodes, "a", partition, 1)
    answer = (await asking).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NONE
    assert nodes.nodes[1].topics.partition("a", partition).log_end_offset == 1


async def test_the_partitions_of_a_dead_node_are_led_by_the_other(nodes: MovingNodes) -> None:
    partition = nodes.partition(0)
    await produce(nodes, 0, partition, b"one")
    incarnation = await nodes.die(0)
    assert await nodes.leader_changes(1).take_over(0, incarnation)
    assert not await nodes.leader_changes(1).take_over(0, incarnation)
    assert await produce(nodes, 1, partition, b"two") is ErrorCode.NONE
    assert nodes.nodes[1].topics.partition("a", partition).log_end_offset == 2
    group = nodes.group_id(1)
    assert await commit(nodes, 1, group, 5) is ErrorCode.NONE
    # It comes back, leads nothing, and gets its share.
    await nodes.start_node(0)
    await nodes.all_see()
    assert not [log for topic in nodes.nodes[0].topics.all() for log in topic.local]
    to_be_given = await nodes.leader_changes(0).even_out((0, 1))
    moved, of_others = await nodes.leader_changes(1).even_out((0, 1))
    assert to_be_given == (0, moved), "each node knows what the other one has to give"
    assert moved and not of_others
    await nodes.all_see()
    led = [
        sum(len(topic.local) for topic in nodes.nodes[node_id].topics.all()) for node_id in (0, 1)
    ]
    assert moved == led[0] and abs(led[0] - led[1]) <= 1


async def test_many_topics_move_by_a_few_reads(
    nodes: MovingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        nodes.nodes[0].topics.create(f"one-{number}", 1)
    await nodes.all_see()
    broker, calls = nodes.nodes[1], Counter[str]()
    count_calls(monkeypatch, calls, broker.catalog.database, "snapshot")
    count_calls(monkeypatch, calls, broker.logs, "open_together")
    assert await nodes.leader_changes(1).take_over(0, await nodes.die(0))
    assert all(len(topic.local) == len(topic.partitions) for topic in broker.topics.all())
    # What has changed, and these topics.
    assert calls["snapshot"] <= 2
    # Sixteen partitions each.
    assert calls["open_together"] <= 3
    await nodes.start_node(0)
    await nodes.all_see()
    calls.clear()
    assert sum(await nodes.leader_changes(1).even_out((0, 1))) >= 30
    # A step for each four shards of a coordinator, and for 64 other partitions: each reads what
    # has moved and, when all nodes are told, the changes and these topics.
    assert calls["snapshot"] <= 3 * 3 + 3


async def test_a_node_that_was_taken_over_ends(nodes: MovingNodes) -> None:
    broker = nodes.nodes[0]
    broker.catalog.nodes.end_lease(0, broker.epoch)
    assert await nodes.leader_changes(1).take_over(0, broker.epoch)
    with pytest.raises(NodeFenced):
        await broker.nodes.see_changes()
    # The message of the other node has made it end already.
    assert all(isinstance(failure, NodeFenced) for failure in nodes.failures)
    nodes.failures.clear()
    await nodes.kill(0)


async def test_a_node_that_stops_leaves_nothing_behind(nodes: MovingNodes) -> None:
    assert await nodes.leader_changes(0).drain((0, 1)) > 0
    assert not [log for topic in nodes.nodes[0].topics.all() for log in topic.local]
    for topic in nodes.nodes[1].topics.all():
        assert len(topic.local) == len(topic.partitions)


async def test_a_node_that_stops_opens_nothing_more(nodes: MovingNodes) -> None:
    partition = nodes.partition(1)
    first, second = nodes.nodes[0], nodes.nodes[1]
    await first.topics.stop()
    await move(nodes, "a", partition, 0)
    found = first.topics.by_name("a")
    assert found is not None and isinstance(found.partitions[partition], Elsewhere)
    there = second.topics.by_name("a")
    assert there is not None and isinstance(there.partitions[partition], Elsewhere)


# --- coordinators


def committing(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="a", partitions=[partition])],
    )


async def commit(nodes: MovingNodes, node_id: int, group: str, offset: int) -> ErrorCode:
    client = await nodes.client(node_id)
    answer = await client.ask(committing(group, offset), 8, OffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(nodes: MovingNodes, node_id: int, group: str) -> int:
    client = await nodes.client(node_id)
    topic = OffsetFetchRequestTopics(name="a", partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])], require_stable=True
    )
    found = (await client.ask(request, 9, OffsetFetchResponse)).groups[0]
    assert not found.error_code, ErrorCode(found.error_code)
    assert not found.topics[0].partitions[0].error_code
    return found.topics[0].partitions[0].committed_offset


def shard_of_group(nodes: MovingNodes, group: str) -> int:
    return nodes.any().groups.shards.partition_of(group)


async def test_a_group_goes_with_its_offsets(nodes: MovingNodes) -> None:
    group = nodes.group_id(0)
    assert await commit(nodes, 0, group, 7) is ErrorCode.NONE
    await move(nodes, CONSUMER_OFFSETS, shard_of_group(nodes, group), 1)
    assert await commit(nodes, 0, group, 8) is ErrorCode.NOT_COORDINATOR
    assert nodes.nodes[0].nodes.node_of_group(group) == 1
    assert await committed(nodes, 1, group) == 7
    assert await commit(nodes, 1, group, 9) is ErrorCode.NONE
    await move(nodes, CONSUMER_OFFSETS, shard_of_group(nodes, group), 0)
    assert await committed(nodes, 0, group) == 9


async def test_a_member_that_waits_for_a_join_is_sent_to_the_next_coordinator(
    nodes: MovingNodes,
) -> None:
    group = nodes.group_id(0)
    client = await nodes.client(0)
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    named = await client.ask(request, 6, JoinGroupResponse)
    request.member_id = named.member_id
    first = await client.ask(request, 6, JoinGroupResponse)
    assert first.error_code == ErrorCode.NONE
    # A second member, which is answered once the first has joined again.
    second = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=request.protocols,
    )
    request.member_id = (await client.ask(second, 6, JoinGroupResponse)).member_id
    waiting = asyncio.create_task(client.ask(request, 6, JoinGroupResponse))
    shard = nodes.nodes[0].groups.shards.of(group)
    while not any(member.joining for member in shard.state.groups[group].members.values()):
        await asyncio.sleep(0)
    await move(nodes, CONSUMER_OFFSETS, shard_of_group(nodes, group), 1)
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


class Txn:
    """A transactional producer of version 1, which asks the node that it is told to."""

    def __init__(self, nodes: MovingNodes, transactional_id: str) -> None:
        self.nodes = nodes
        self.id = transactional_id
        self.producer_id = self.epoch = -1
        self.sequence = 0

    async def begin(self, node_id: int) -> None:
        client = await self.nodes.client(node_id)
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        answer = await client.ask(request, 4, InitProducerIdResponse)
        assert not answer.error_code, ErrorCode(answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def add(self, node_id: int, partition: int) -> ErrorCode:
        client = await self.nodes.client(node_id)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[partition])],
        )
        answer = await client.ask(request, 3, AddPartitionsToTxnResponse)
        result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        return ErrorCode(result.partition_error_code)

    async def produce(self, node_id: int, partition: int, value: bytes) -> ErrorCode:
        client = await self.nodes.client(node_id)
        batch = batch_of(
            value,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=self.sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.id,
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name="a", partition_data=[data])],
        )
        answer = await client.ask(request, 9, ProduceResponse)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        self.sequence += code is ErrorCode.NONE
        return code

    async def end(self, node_id: int, *, commit: bool) -> ErrorCode:
        client = await self.nodes.client(node_id)
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return ErrorCode((await client.ask(request, 3, EndTxnResponse)).error_code)


def shard_of(nodes: MovingNodes, transactional_id: str) -> int:
    count = len(nodes.any().transactions.store._by_partition)
    return joint.coordinator_partition(transactional_id, "", count)


async def test_an_open_transaction_goes_on_at_the_next_coordinator(nodes: MovingNodes) -> None:
    txn = Txn(nodes, nodes.transactional_id(0))
    await txn.begin(0)
    home, away = nodes.partition(0), nodes.partition(1)
    assert await txn.add(0, home) is ErrorCode.NONE
    assert await txn.produce(0, home, b"one") is ErrorCode.NONE
    await move(nodes, TRANSACTION_STATE, shard_of(nodes, txn.id), 1)
    assert await txn.add(0, away) is ErrorCode.NOT_COORDINATOR
    assert await txn.add(1, away) is ErrorCode.NONE
    assert await txn.produce(1, away, b"two") is ErrorCode.NONE
    store = nodes.nodes[0].transactions.store
    assert store.index.open_count == 0 and not len(store.index)
    assert nodes.nodes[1].transactions.open_count == 1
    assert await txn.end(1, commit=True) is ErrorCode.NONE
    for node_id, partition in ((0, home), (1, away)):
        log = nodes.nodes[node_id].topics.partition("a", partition)
        assert log.last_stable_offset == log.log_end_offset > 1


async def test_a_decision_is_carried_out_by_the_next_coordinator(nodes: MovingNodes) -> None:
    txn = Txn(nodes, nodes.transactional_id(0))
    await txn.begin(0)
    away = nodes.partition(1)
    assert await txn.add(0, away) is ErrorCode.NONE
    assert await txn.produce(1, away, b"one") is ErrorCode.NONE
    # The markers have to wait: their node does not answer.
    await nodes.kill(1)
    ending = asyncio.create_task(txn.end(0, commit=True))
    first = nodes.nodes[0].transactions
    while not first.store.commits.under_way:
        await asyncio.sleep(0)
    await nodes.start_node(1)
    await move(nodes, TRANSACTION_STATE, shard_of(nodes, txn.id), 1)
    assert await ending in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
    assert not first.store.commits.under_way and not first.store.completions.owed
    await nodes.nodes[1].transactions.store.commits.visible(txn.id)
    log = nodes.nodes[1].topics.partition("a", away)
    assert log.last_stable_offset == log.log_end_offset == 2
    # A retry of the same end is told what has become of it.
    assert await txn.end(1, commit=True) is ErrorCode.NONE
    found = nodes.nodes[1].transactions.find(txn.id)
    assert found is not None and found.state is State.COMPLETE_COMMIT


async def test_a_marker_follows_its_partition_to_another_node(nodes: MovingNodes) -> None:
    txn = Txn(nodes, nodes.transactional_id(0))
    await txn.begin(0)
    home = nodes.partition(0)
    assert await txn.add(0, home) is ErrorCode.NONE
    assert await txn.produce(0, home, b"one") is ErrorCode.NONE
    await move(nodes, "a", home, 1)
    assert await txn.end(0, commit=False) is ErrorCode.NONE
    log = nodes.nodes[1].topics.partition("a", home)
    assert log.last_stable_offset == log.log_end_offset == 2


async def test_what_is_remembered_of_a_hold_goes_with_the_partition(nodes: MovingNodes) -> None:
    txn = Txn(nodes, nodes.transactional_id(0))
    await txn.begin(0)
    away = nodes.partition(1)
    assert await txn.add(0, away) is ErrorCode.NONE
    assert await txn.produce(1, away, b"one") is ErrorCode.NONE
    held = nodes.nodes[1].among_peers
    assert held is not None
    identity = (txn.id, txn.producer_id, txn.epoch)
    assert held.holds.holds(*identity, TopicPartition("a", away))
    await move(nodes, "a", away, 0)
    assert not held.holds.holds(*identity, TopicPartition("a", away))


async def test_healing_leaves_alone_what_a_shard_that_moves_may_know(nodes: MovingNodes) -> None:
    txn = Txn(nodes, nodes.transactional_id(0))
    await txn.begin(0)
    away = nodes.partition(1)
    assert await txn.add(0, away) is ErrorCode.NONE
    assert await txn.produce(1, away, b"one") is ErrorCode.NONE
    first = nodes.nodes[0]
    shard = shard_of(nodes, txn.id)
    # Between the two: the first node has let go of it, the other has not loaded it yet.
    topic = first.topics.by_name(TRANSACTION_STATE)
    assert topic is not None
    log = topic.partitions[shard]
    first.transactions.store.unload(shard)
    topic.partitions[shard] = Elsewhere(1, first.epoch)
    await nodes.nodes[1].healing.sweep()
    assert not nodes.nodes[1].healing.counts
    assert nodes.nodes[1].topics.partition("a", away).last_stable_offset == 0
    begin = await first.transactions.store.load(log)  # type: ignore[arg-type]  # a log
    topic.partitions[shard] = log
    begin()
    assert await txn.end(0, commit=True) is ErrorCode.NONE


async def test_a_shard_that_is_being_loaded_says_so(nodes: MovingNodes) -> None:
    group, transactional_id = nodes.group_id(0), nodes.transactional_id(0)
    first = nodes.nodes[0]
    for name, shard in (
        (CONSUMER_OFFSETS, shard_of_group(nodes, group)),
        (TRANSACTION_STATE, shard_of(nodes, transactional_id)),
    ):
        topic = first.topics.by_name(name)
        assert topic is not None
        log = topic.partitions[shard]
        coordinator = first.topics.led.coordinators[name]
        coordinator.unload(shard)
        topic.partitions[shard] = Elsewhere(0, first.epoch)
        if name == CONSUMER_OFFSETS:
            assert await commit(nodes, 0, group, 1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        else:
            client = await nodes.client(0)
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000
            )
            answer = await client.ask(request, 4, InitProducerIdResponse)
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        begin = await coordinator.load(log)  # type: ignore[arg-type]  # a log
        topic.partitions[shard] = log
        begin()
    assert await commit(nodes, 0, group, 1) is ErrorCode.NONE
