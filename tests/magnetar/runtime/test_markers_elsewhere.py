"""Markers for other nodes: asked for until they are there, skipped only if the catalog says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from magnetar.runtime import markers_elsewhere
from magnetar.runtime.marker_messages import owed_by
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.participants import AppendedMarker, LeftMarker
from magnetar.runtime.peers import Answer as PeerAnswer
from magnetar.runtime.peers import PeerUnreachable
from magnetar.storage.database import CatalogUnavailable
from tests.magnetar.clocks import MovedClock
from tests.magnetar.runtime.responding_peers import RespondingPeers
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

HERE, THERE, FAR = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2)
WORK = MarkerWork("tx", 1000, 5, True, frozenset({HERE, THERE, FAR}))
Answer = Callable[[int, TopicPartition, Part], ErrorCode | None]


class World(RespondingPeers):
    """Nodes 0 (this one), 1 and 2, of which each has one partition."""

    own_id = 0

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.leaders = {HERE: 0, THERE: 1, FAR: 2}
        #: What the catalog has, and this node has not read yet.
        self.unread: dict[TopicPartition, int | None] = {}
        self.asked: list[tuple[int, TopicPartition, Part]] = []
        self.appended: list[TopicPartition] = []
        #: Partitions of this node that it has not opened yet.
        self.coming: set[TopicPartition] = set()
        #: How many readings of the catalog it does not answer.
        self.away = 0
        self.markers = MarkersElsewhere(self, self, self, MovedClock(), None)

    # Who leads.

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leaders.get(TopicPartition(topic, partition))

    def is_led_here(self, topic: str, partition: int) -> bool:
        return self.leader_of(topic, partition) == self.own_id

    async def see_changes(self) -> int:
        if self.away:
            self.away -= 1
            raise CatalogUnavailable("away")
        for partition, leader in self.unread.items():
            if leader is None:
                self.leaders.pop(partition, None)
            else:
                self.leaders[partition] = leader
        self.unread.clear()
        return 0

    # The peers.

    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        sent = WriteTxnMarkersRequest.decode(request.encode(version), version)
        results = []
        for marker in sent.markers:
            owed = owed_by(marker)
            assert owed.work.producer_id == WORK.producer_id and owed.coordinator_epoch == 7
            topics = []
            for topic in owed.topics:
                codes = [
                    self._code_of(node_id, TopicPartition(topic.name, index), owed.part)
                    for index in topic.partition_indexes
                ]
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=codes))
            results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=results)

    def _code_of(
        self, node_id: int, partition: TopicPartition, part: Part
    ) -> WritableTxnMarkerPartitionResult:
        self.asked.append((node_id, partition, part))
        code = self._answer(node_id, partition, part)
        if code is None:
            raise PeerUnreachable(node_id, "it is gone")
        return WritableTxnMarkerPartitionResult(
            partition_index=partition.partition, error_code=code
        )

    # The partitions of this node.

    def count_making_files(self, partitions: Iterable[TopicPartition]) -> int:
        return 0

    def append(
        self,
        works: Iterable[MarkerWork],
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
        left: list[LeftMarker],
    ) -> Iterator[Sequence[AppendedMarker]]:
        for work in works:
            for partition in work.partitions:
                if partition in self.coming:
                    left.append((work, partition))
                else:
                    self.appended.append(partition)
        self.coming.clear()
        yield ()

    def are_durable(self, markers: Sequence[AppendedMarker]) -> bool:
        return True

    async def durable(self, markers: Sequence[AppendedMarker]) -> None:
        """Nothing is waited for."""

    async def bring(self) -> None:
        _, owed = self.markers.divided((WORK,))
        await self.markers.bring(owed, Part.MARKERS, 7)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is asked again at once."""
    monkeypatch.setattr(markers_elsewhere, "RETRY_S_MIN", 0.0)
    monkeypatch.setattr(markers_elsewhere, "RETRY_S_MAX", 0.0)


def once_then(first: ErrorCode | None, at: TopicPartition = THERE) -> Answer:
    """Answer `first` to the first question about a partition, and NONE to every other."""
    seen: list[TopicPartition] = []

    def answer(_: int, partition: TopicPartition, __: Part) -> ErrorCode | None:
        seen.append(partition)
        return first if partition == at and seen.count(at) == 1 else ErrorCode.NONE

    return answer


async def test_each_node_is_asked_once_for_what_it_leads() -> None:
    world = World(once_then(ErrorCode.NONE))
    await world.bring()
    assert sorted(world.asked) == [(1, THERE, Part.MARKERS), (2, FAR, Part.MARKERS)]
    assert not world.appended, "this node's own are appended with the decision"


@pytest.mark.parametrize(
    "first", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR]
)
async def test_a_node_that_has_not_done_it_is_asked_again_for_what_is_missing(
    first: ErrorCode | None,
) -> None:
    world = World(once_then(first))
    await world.bring()
    asked = [(partition, part) for _, partition, part in world.asked]
    assert asked.count((FAR, Part.MARKERS)) == 1 and (FAR, Part.MISSING_MARKERS) not in asked
    assert asked.index((THERE, Part.MARKERS)) < asked.index((THERE, Part.MISSING_MARKERS))


async def test_a_partition_that_has_a_later_epoch_needs_no_marker() -> None:
    world = World(once_then(ErrorCode.INVALID_PRODUCER_EPOCH))
    await world.bring()
    assert [partition for _, partition, _ in world.asked].count(THERE) == 1


async def test_a_peer_that_does_not_know_a_partition_of_the_catalog_is_asked_again() -> None:
    world = World(once_then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    await world.bring()
    assert (1, THERE, Part.MISSING_MARKERS) in world.asked


async def test_a_partition_that_the_catalog_has_no_more_is_skipped_alone() -> None:
    world = World(once_then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    world.unread[THERE] = None
    await world.bring()
    assert sorted(world.asked) == [(1, THERE, Part.MARKERS), (2, FAR, Part.MARKERS)]


async def test_a_partition_that_this_node_has_not_read_of_is_looked_up_first() -> None:
    world = World(once_then(ErrorCode.NONE))
    del world.leaders[THERE]
    world.unread[THERE] = 1
    await world.bring()
    assert (1, THERE, Part.MISSING_MARKERS) in world.asked


async def test_a_partition_that_has_become_this_nodes_is_marked_here() -> None:
    world = World(once_then(None))
    world.unread[THERE] = 0
    await world.bring()
    assert world.appended == [THERE]


async def test_a_partition_that_this_node_is_still_opening_is_marked_once_it_is_open() -> None:
    world = World(once_then(None))
    world.unread[THERE] = 0
    world.coming.add(THERE)
    await world.bring()
    assert world.appended == [THERE] and not world.coming


@pytest.mark.parametrize("first", [None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
async def test_a_catalog_that_is_away_leaves_owed_what_is_owed(first: ErrorCode | None) -> None:
    world = World(once_then(first))
    world.away = 3
    await world.bring()
    assert world.away < 3
    assert [node_id for node_id, partition, _ in world.asked if partition == THERE] == [1, 1]


async def test_a_partition_that_is_not_known_is_skipped_once_the_catalog_has_answered() -> None:
    world = World(once_then(ErrorCode.NONE))
    del world.leaders[THERE]
    world.away = 3
    await world.bring()
    assert world.away == 0
    assert [partition for _, partition, _ in world.asked] == [FAR]


async def test_an_answer_that_comes_after_the_end_of_the_wait_changes_nothing() -> None:
    may_answer = asyncio.Event()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    class Slow(World):
        async def respond(self, node_id: int, request: Message, version: int) -> Message:
            await may_answer.wait()
            return await super().respond(node_id, request, version)

    world = Slow(once_then(ErrorCode.NONE))
    bringing = asyncio.ensure_future(world.bring())
    await asyncio.sleep(0.01)
    bringing.cancel()
    await asyncio.wait([bringing])
    may_answer.set()
    await asyncio.sleep(0.01)
    assert sorted(node_id for node_id, _, _ in world.asked) == [1, 2] and not errors


async def test_an_answer_in_the_step_that_ends_the_wait_changes_nothing() -> None:
    calls: list[tuple[int, Message, int, PeerAnswer[Message]]] = []

    class Held(World):
        def send(
            self, node_id: int, request: Message, version: int, answer: PeerAnswer[Message]
        ) -> None:
            calls.append((node_id, request, version, answer))

    world = Held(once_then(ErrorCode.NONE))
    bringing = asyncio.ensure_future(world.bring())
    await asyncio.sleep(0.01)
    answers = [(call[3], await world.respond(*call[:3])) for call in calls]
    assert len(answers) == 2
    # A shard moves away, and the answers are in the same turn of the event loop.
    bringing.cancel()
    for answer, response in answers:
        answer.set_result(response)
    with pytest.raises(asyncio.CancelledError):
        await bringing
