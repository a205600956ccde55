"""Leaders on other nodes hear of an add before they ask: what is told, when, and what is not."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from coordinator.transactions.metadata import ProducerIdentity, State, TopicPartition
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.peer_messages import HeldTopic, HoldsToldRequest
from tests.magnetar.transaction_world import A0, World
from wire.message import Message

#: Led by another node; of `A0` this one is the leader.
B0, B1, C2 = TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("c", 2)


class Said(NamedTuple):
    """What one node was told."""

    node_id: int
    identity: ProducerIdentity
    held: set[TopicPartition]


class Cluster:
    """This node is 0; node 1 leads topic b, node 2 leads topic c."""

    own_id = 0

    def __init__(self) -> None:
        self.said: list[Said] = []

    def leader_of(self, topic: str, partition: int) -> int | None:
        return {"a": 0, "b": 1, "c": 2}.get(topic)

    def tell(self, node_id: int, request: Message, version: int) -> None:
        told = HoldsToldRequest.decode(request.encode(version), version)
        identity = ProducerIdentity(told.producer_id, told.producer_epoch)
        held = {
            TopicPartition(topic.name, one) for topic in told.topics for one in topic.partitions
        }
        self.said.append(Said(node_id, identity, held))


class Node:
    """A coordinator of a node, which can be made to sync."""

    def __init__(self, *, moves: bool) -> None:
        self.cluster = Cluster()
        self.world = World()
        self.world.coordinator.holds._told = HoldsTold(self.cluster, self.cluster, moves=moves)

    def add(self, identity: ProducerIdentity, *partitions: TopicPartition) -> asyncio.Task[None]:
        adding = self.world.coordinator.holds.add_partitions("tx", identity, frozenset(partitions))
        return asyncio.ensure_future(adding)


@pytest.fixture
def node() -> Node:
    return Node(moves=False)


async def test_leaders_are_told_what_they_hold_once_the_add_is_durable(node: Node) -> None:
    identity = await node.world.init()
    adding = node.add(identity, A0, B0, B1, C2)
    await asyncio.sleep(0)
    assert node.world.state() is State.ONGOING
    assert not adding.done() and not node.cluster.said
    await node.world.answered(adding)
    assert sorted(node.cluster.said) == [Said(1, identity, {B0, B1}), Said(2, identity, {C2})]


async def test_an_add_of_own_partitions_waits_for_no_sync_and_tells_nothing(node: Node) -> None:
    identity = await node.world.init()
    await asyncio.wait_for(node.add(identity, A0), 1)
    assert not node.cluster.said


async def test_a_transaction_that_ends_before_its_add_is_durable_is_told_to_no_leader(
    node: Node,
) -> None:
    identity = await node.world.init()
    adding = node.add(identity, A0, B0)
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(node.world.end("tx", identity, commit=True))
    await node.world.answered(ending)
    await node.world.answered(adding)
    assert not node.cluster.said


async def test_more_partitions_than_a_turn_should_take_are_not_told(node: Node) -> None:
    identity = await node.world.init()
    many = [TopicPartition("b", index) for index in range(257)]
    await node.world.answered(node.add(identity, *many))
    assert not node.cluster.said


async def test_where_coordinators_move_an_add_is_durable_when_answered_and_nothing_is_told() -> (
    None
):
    node = Node(moves=True)
    identity = await node.world.init()
    adding = node.add(identity, A0, B0)
    await asyncio.sleep(0)
    assert node.world.state() is State.ONGOING and not adding.done()
    await node.world.answered(adding)
    log, end_offset = node.world.coordinator.holds.check_produce(
        "tx", *identity, *A0, is_abortable_known=True
    )
    assert log.high_watermark >= end_offset
    assert not node.cluster.said


def test_a_message_names_topics_and_their_partitions() -> None:
    told = HoldsToldRequest(
        producer_id=7, producer_epoch=3, topics=[HeldTopic(name="b", partitions=[0, 5])]
    )
    assert HoldsToldRequest.decode(told.encode(0), 0) == told
