"""The end of a transaction over nodes is answered when each has its markers, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from coordinator.transactions.commit_plan import Storage
from coordinator.transactions.metadata import ProducerIdentity, State, TopicPartition
from coordinator.transactions.remembered_holds import RememberedHolds
from magnetar.runtime import markers_elsewhere
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.peers import Answer, PeerUnreachable
from magnetar.runtime.turns import Turns
from tests.magnetar.clocks import MovedClock
from tests.magnetar.transaction_world import A0, World, batch_by
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

B0, B1, C0 = TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("c", 0)


class Nodes:
    """This node is 0. Others answer when they are told."""

    own_id = 0

    def __init__(self) -> None:
        #: By topic; of `coming` this node is the leader, and has not opened it.
        self.leaders = {"a": 0, "b": 1, "c": 2}
        self.coming: set[str] = set()
        self._calls: list[tuple[int, WriteTxnMarkersRequest, Answer[Message]]] = []

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leaders.get(topic)

    def is_led_here(self, topic: str, partition: int) -> bool:
        return self.leaders.get(topic) == self.own_id and topic not in self.coming

    def leads(self, partition: TopicPartition) -> bool:
        return self.is_led_here(*partition)

    async def see_changes(self) -> int:
        return 0

    def call(self, node_id: int, request: Message, version: int) -> asyncio.Future[Message]:
        raise AssertionError("markers need no future")

    def give_up(self, node_id: int) -> None:
        raise AssertionError("no lease ends")

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        return ()

    def send(self, node_id: int, request: Message, version: int, answer: Answer[Message]) -> None:
        assert isinstance(request, WriteTxnMarkersRequest)
        self._calls.append((node_id, request, answer))

    @property
    def asked(self) -> list[tuple[int, TopicPartition]]:
        """What is asked now: of which node, for which partition."""
        return [
            (node_id, TopicPartition(topic.name, index))
            for node_id, request, _ in self._calls
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]

    def answer(self, codes: Mapping[TopicPartition, ErrorCode | None] = {}) -> None:
        """Answer the oldest call: NONE but for `codes`, of which None leaves the partition out."""
        _, request, answer = self._calls.pop(0)
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                told = [
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                    for index in topic.partition_indexes
                    if (code := codes.get(TopicPartition(topic.name, index), ErrorCode.NONE))
                    is not None
                ]
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=told))
            results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        answer.set_result(WriteTxnMarkersResponse(markers=results))

    def be_silent(self) -> None:
        """Let the oldest call fail."""
        node_id, _, answer = self._calls.pop(0)
        answer.set_exception(PeerUnreachable(node_id, "it is gone"))


class OverNodes(World):
    """A coordinator on one of three nodes."""

    def __post_init__(self) -> None:
        self.storage = Storage.ALL_OR_NOTHING
        super().__post_init__()
        self.nodes = Nodes()
        local = LocalParticipants(self, self.pending_acks(), Turns(), RememberedHolds())
        store = self.coordinator.store
        store.commits._participants = local
        store.commits._elsewhere = MarkersElsewhere(
            self.nodes, self.nodes, local, MovedClock(), None
        )
        store._is_led_here = self.nodes.leads

    async def turns(self) -> None:
        """Let everything go on that need not wait for another node."""
        for _ in range(10):
            self.step()
            await asyncio.sleep(0.001)

    async def ending(self, *partitions: TopicPartition) -> asyncio.Task[ProducerIdentity]:
        """Commit a transaction that holds these; return its end, which is not answered yet."""
        self.identity = await self.init()
        adding = self.coordinator.holds.add_partitions("tx", self.identity, frozenset(partitions))
        await self.until(adding)
        ending = asyncio.ensure_future(self.end("tx", self.identity, commit=True))
        await self.turns()
        self.is_open(ending)
        return ending

    def is_open(self, ending: asyncio.Task[ProducerIdentity]) -> None:
        assert not ending.done() and self.state() is State.PREPARE_COMMIT
        assert "tx" not in self.coordinator.store.completions.owed

    async def is_over(self, ending: asyncio.Task[ProducerIdentity]) -> None:
        await self.turns()
        await ending
        await self.settle()
        assert self.state() is State.COMPLETE_COMMIT and not self.failures


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> OverNodes:
    monkeypatch.setattr(markers_elsewhere, "RETRY_S_MIN", 0.0)
    monkeypatch.setattr(markers_elsewhere, "RETRY_S_MAX", 0.0)
    return OverNodes()


async def test_every_node_has_answered_before_the_end_is(world: OverNodes) -> None:
    ending = await world.ending(A0, B0, C0)
    assert sorted(world.nodes.asked) == [(1, B0), (2, C0)]
    world.nodes.answer()
    await world.turns()
    world.is_open(ending)
    world.nodes.answer()
    await world.is_over(ending)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        None,
    ],
)
async def test_what_a_node_refuses_is_asked_again_before_the_end_is_answered(
    world: OverNodes, code: ErrorCode | None
) -> None:
    ending = await world.ending(B0, B1)
    world.nodes.answer({B1: code})
    await world.turns()
    world.is_open(ending)
    assert world.nodes.asked == [(1, B1)]
    world.nodes.answer()
    await world.is_over(ending)


async def test_a_silent_node_is_asked_again_before_the_end_is_answered(world: OverNodes) -> None:
    ending = await world.ending(A0, B0, C0)
    world.nodes.be_silent()
    world.nodes.answer()
    await world.turns()
    world.is_open(ending)
    world.nodes.answer()
    await world.is_over(ending)


async def test_a_partition_that_comes_here_has_its_marker_before_the_end_is_answered(
    world: OverNodes,
) -> None:
    world.nodes.leaders["b"], world.nodes.coming = 0, {"b"}
    ending = await world.ending(B0, C0)
    world.nodes.answer()
    await world.turns()
    world.is_open(ending)
    world.add_topic("b", 1)
    data = batch_by(world.identity, 0)
    world.logs[B0].append(world.logs[B0].check(data, world.now_ms))
    await world.is_over(ending)
    assert world.markers(B0) == [("COMMIT", 0)]


async def test_a_partition_that_leaves_in_the_step_of_the_decision_has_its_marker_elsewhere(
    world: OverNodes,
) -> None:
    identity = await world.init()
    both = frozenset({A0, C0})
    await world.until(world.coordinator.holds.add_partitions("tx", identity, both))
    world.delete_topic("a")
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    await world.turns()
    world.nodes.be_silent()
    await world.turns()
    world.nodes.answer()
    await world.turns()
    world.is_open(ending)
    world.nodes.leaders["a"] = 1
    await world.turns()
    assert world.nodes.asked == [(1, A0)]
    world.nodes.answer()
    await world.is_over(ending)
