"""Replicas as administrators of a cluster see and assign them: factors, assignments, elections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.metrics import replica_counts
from magnetar.metrics.replica_counts import replication
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.nodes_in_one import two_of
from wire.error_code import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[MovingNodes]:
    async with two_of(MovingNodes(tmp_path / "data")) as started:
        await started.all_see()
        yield started


async def create(
    nodes: MovingNodes,
    name: str,
    factor: int,
    assigned: Sequence[Sequence[int]] = (),
    count: int = 2,
) -> ErrorCode:
    asked = CreatableTopic(
        name=name,
        num_partitions=-1 if assigned else count,
        replication_factor=-1 if assigned else factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=[*each])
            for index, each in enumerate(assigned)
        ],
    )
    client = await nodes.client(0)
    request = CreateTopicsRequest(topics=[asked], timeout_ms=5000)
    answer = await client.ask(request, 7, CreateTopicsResponse)
    return ErrorCode(answer.topics[0].error_code)


async def partitions(nodes: MovingNodes, name: str) -> list[MetadataResponsePartition]:
    client = await nodes.client(0)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return (await client.ask(asked, 13, MetadataResponse)).topics[0].partitions


async def reassign(
    nodes: MovingNodes, replicas: list[int] | None, partition: int, *, may_change: bool = True
) -> ErrorCode:
    """Assign replicas of a partition of `a`; each node looks at what it leads meanwhile."""
    asked = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=5000,
        allow_replication_factor_change=may_change,
        topics=[ReassignableTopic(name="a", partitions=[asked])],
    )
    client = await nodes.client(0)
    asking = asyncio.create_task(client.ask(request, 1, AlterPartitionReassignmentsResponse))
    await follow(nodes, asking)
    answer = await asking
    assert answer.error_code == ErrorCode.NONE
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def follow(nodes: MovingNodes, asking: asyncio.Task[object]) -> None:
    """Do what nodes do each second, for as long as a request is under way."""
    while not asking.done():
        for node_id in nodes.nodes:
            await nodes.leader_changes(node_id).prefer([*nodes.nodes])
        await nodes.all_see()
        await asyncio.sleep(0)


async def elect(nodes: MovingNodes, partition: int) -> ErrorCode:
    named = [TopicPartitions(topic="a", partitions=[partition])]
    request = ElectLeadersRequest(election_type=0, topic_partitions=named, timeout_ms=5000)
    client = await nodes.client(0)
    answer = await client.ask(request, 2, ElectLeadersResponse)
    return ErrorCode(answer.replica_election_results[0].partition_result[0].error_code)


async def test_there_are_as_many_replicas_as_nodes(nodes: MovingNodes) -> None:
    assert await create(nodes, "two", 2) is ErrorCode.NONE
    assert await create(nodes, "three", 3) is ErrorCode.INVALID_REPLICATION_FACTOR
    for one in await partitions(nodes, "two"):
        assert one.replica_nodes[0] == one.leader_id
        assert sorted(one.replica_nodes) == sorted(one.isr_nodes) == [0, 1]
        assert not one.offline_replicas
    assert [one.replica_nodes for one in await partitions(nodes, "a")] == [
        [one.leader_id] for one in await partitions(nodes, "a")
    ]
    held = [(await replication(node.topics)).held for node in nodes.nodes.values()]
    topics = nodes.nodes[0].topics.all()
    assert sum(held) == sum(len(each.partitions) * each.replication_factor for each in topics)
    assert min(held) >= len(await partitions(nodes, "two")) > 0


async def test_a_replica_that_is_gone_is_offline_and_not_in_sync(nodes: MovingNodes) -> None:
    await create(nodes, "two", 2)
    placement = nodes.nodes[0].topics.placement
    assert (await replication(nodes.nodes[0].topics)).under_replicated == 0
    placement.see_nodes([0], [0, 1])
    led = sum(one.leader_id == 0 for one in await partitions(nodes, "two"))
    assert led and (await replication(nodes.nodes[0].topics)).under_replicated == led
    for one in await partitions(nodes, "two"):
        is_led = one.leader_id == 0
        assert (one.isr_nodes, one.offline_replicas) == ([0], [1])
        assert one.error_code == (ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE)
    # As many as Kafka, whose brokers stay registered: a restart refuses no new topic.
    assert await create(nodes, "new", 2) is ErrorCode.NONE
    assert [one.leader_id for one in await partitions(nodes, "new")] == [0, 0]


async def test_counting_replicas_lets_other_work_go_on(
    nodes: MovingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_counts, "_SLICE", 3)
    topics = nodes.nodes[0].topics
    counting = asyncio.ensure_future(replication(topics))
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > sum(len(each.partitions) for each in topics.all()) / 3 > 2


async def test_manual_assignments_are_kept_in_their_order(nodes: MovingNodes) -> None:
    assert await create(nodes, "manual", 0, [[1, 0], [1, 0], [0, 1]]) is ErrorCode.NONE
    assert [one.replica_nodes for one in await partitions(nodes, "manual")] == [
        [1, 0],
        [1, 0],
        [0, 1],
    ]
    assert [one.leader_id for one in await partitions(nodes, "manual")] == [1, 1, 0]
    unlike = await create(nodes, "unlike", 0, [[1, 0], [1]])
    assert unlike is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(nodes, "new", 0, [[7]]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    client = await nodes.client(1)
    for broker_ids, code in (([0], ErrorCode.INVALID_REPLICA_ASSIGNMENT), ([0, 1], ErrorCode.NONE)):
        growth = CreatePartitionsTopic(
            name="manual", count=4, assignments=[CreatePartitionsAssignment(broker_ids=broker_ids)]
        )
        request = CreatePartitionsRequest(topics=[growth], timeout_ms=5000)
        answer = await client.ask(request, 3, CreatePartitionsResponse)
        assert answer.results[0].error_code == code
    assert (await partitions(nodes, "manual"))[3].replica_nodes == [0, 1]


async def test_a_reassignment_moves_the_leader(nodes: MovingNodes) -> None:
    index = nodes.partition(0)
    assert await reassign(nodes, [1], index) is ErrorCode.NONE
    moved = (await partitions(nodes, "a"))[index]
    assert (moved.leader_id, moved.replica_nodes, moved.isr_nodes) == (1, [1], [1])
    assert await reassign(nodes, [0, 1], index) is ErrorCode.NONE
    moved = (await partitions(nodes, "a"))[index]
    assert (moved.leader_id, moved.replica_nodes) == (0, [0, 1])
    assert await elect(nodes, index) is ErrorCode.ELECTION_NOT_NEEDED
    fixed = await reassign(nodes, [1], index, may_change=False)
    assert fixed is ErrorCode.INVALID_REPLICATION_FACTOR
    assert await reassign(nodes, [2], index) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await reassign(nodes, None, index) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_move_is_under_way_until_its_leader_leads(nodes: MovingNodes) -> None:
    index = nodes.partition(0)
    broker = nodes.nodes[0]
    topic = broker.topics.by_name("a")
    assert topic is not None
    broker.catalog.assign_replicas(topic.id, {index: (1,)})
    await nodes.all_see()
    client = await nodes.client(0)
    request = ListPartitionReassignmentsRequest(topics=None)
    answer = await client.ask(request, 0, ListPartitionReassignmentsResponse)
    (moving,) = answer.topics[0].partitions
    assert (moving.adding_replicas, moving.removing_replicas) == ([1], [0])
    named = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="a", partitions=[index])], timeout_ms=1
    )
    late = await client.ask(named, 2, ElectLeadersResponse)
    code = late.replica_election_results[0].partition_result[0].error_code
    assert code == ErrorCode.REQUEST_TIMED_OUT
    await nodes.leader_changes(0).prefer([0, 1])
    assert not (await client.ask(request, 0, ListPartitionReassignmentsResponse)).topics


async def test_an_election_says_that_the_preferred_leader_is_gone(nodes: MovingNodes) -> None:
    index = nodes.partition(0)
    await reassign(nodes, [0, 1], index)
    owner = nodes.nodes[0]
    topic = owner.topics.by_name("a")
    assert topic is not None
    owner.catalog.assign_replicas(topic.id, {index: (1, 0)})
    await nodes.all_see()
    owner.topics.placement.see_nodes([0], [0, 1])
    assert await elect(nodes, index) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


async def test_what_is_assigned_does_not_move_for_the_sake_of_shares(nodes: MovingNodes) -> None:
    await create(nodes, "manual", 0, [[0, 1]] * 6)
    small = [f"small-{number}" for number in range(4)]
    for name in small:
        await create(nodes, name, 1, count=1)
    before = await partitions(nodes, "manual")
    # Six more than the other node: what can make room does, if its topic stays as even as it is.
    await nodes.leader_changes(0).even_out([0, 1])
    await nodes.all_see()
    assert await partitions(nodes, "manual") == before
    assert [(await partitions(nodes, name))[0].leader_id for name in small] == [1] * 4
    internal = Counter(each.leader_id for each in await partitions(nodes, CONSUMER_OFFSETS))
    assert abs(internal[0] - internal[1]) <= 1


async def test_a_coordinators_shard_moves_too(nodes: MovingNodes) -> None:
    before = await partitions(nodes, CONSUMER_OFFSETS)
    owner = nodes.nodes[before[0].leader_id]
    topic = owner.topics.by_name(CONSUMER_OFFSETS)
    assert topic is not None
    other = 1 - before[0].leader_id
    owner.catalog.assign_replicas(topic.id, {0: (other,)})
    await nodes.all_see()
    await nodes.leader_changes(owner.node_id).prefer([0, 1])
    await nodes.all_see()
    assert (await partitions(nodes, CONSUMER_OFFSETS))[0].leader_id == other
