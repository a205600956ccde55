"""Markers that a peer asks for: many of them take several turns of the event loop, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.marker_messages import marker_of
from magnetar.runtime.peer_requests import PeerRequests
from magnetar.runtime.turns import Turns
from tests.magnetar.transaction_world import World, WorldClock
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

COUNT = 30


class Node:
    """A node that serves peers, and what it has appended: producer id, partition, turn."""

    def __init__(self) -> None:
        self.world = World()
        self.world.add_topic("big", COUNT)
        self.turns = Turns()
        self.turn = 0
        self.appended: list[tuple[int, int, int]] = []
        participants = self.world.services().participants
        append_owed = participants.append_owed

        def append(work: MarkerWork, partition: TopicPartition, *rest: Any) -> Any:
            self.appended.append((work.producer_id, partition.partition, self.turn))
            return append_owed(work, partition, *rest)

        cast(Any, participants).append_owed = append
        self.requests = PeerRequests(
            self.world.coordinator,
            participants,
            WorldClock(self.world),
            self.turns,
            cast(Any, None),
            None,
        )

    def ask(
        self, producer_id: int, count: int
    ) -> Message | DelayedResponse | Callable[[], Awaitable[Message]]:
        partitions = [TopicPartition("big", index) for index in range(count)]
        work = MarkerWork("tx", producer_id, 0, commit=True, partitions=partitions)
        marker = marker_of(work, 0, Part.MARKERS)
        return self.requests.write_markers(WriteTxnMarkersRequest(markers=[marker]))

    async def until(self, *answers: object) -> list[Message]:
        """Return the answers, with a disk that syncs; count the turns meanwhile."""
        tasks = []
        for answer in answers:
            assert callable(answer)
            tasks.append(asyncio.ensure_future(answer()))
        while not all(task.done() for task in tasks):
            self.turn += 1
            self.world.step()
            await asyncio.sleep(0)
        return [task.result() for task in tasks]


@pytest.mark.usefixtures("short_turns")
async def test_many_markers_of_a_peer_take_several_turns() -> None:
    node = Node()
    (answer,) = await node.until(node.ask(1, COUNT))
    turns = [turn for _, _, turn in node.appended]
    assert [index for _, index, _ in node.appended] == [*range(COUNT)]
    assert max(turns.count(turn) for turn in turns) <= 2
    assert isinstance(answer, WriteTxnMarkersResponse)
    results = answer.markers[0].topics[0].partitions
    assert [(one.partition_index, one.error_code) for one in results] == [
        (index, ErrorCode.NONE) for index in range(COUNT)
    ]
    logs = [node.world.logs[TopicPartition("big", index)] for index in range(COUNT)]
    assert {log.high_watermark for log in logs} == {1}


@pytest.mark.usefixtures("short_turns")
async def test_markers_that_come_meanwhile_are_appended_after_them() -> None:
    """Even the few markers of a short request: else a late copy could end a later transaction."""
    node = Node()
    await node.until(node.ask(1, COUNT), node.ask(2, 1), node.ask(3, COUNT))
    producers = [producer_id for producer_id, _, _ in node.appended]
    assert producers == [1] * COUNT + [2] + [3] * COUNT
    # Now no markers are left, so a request does not wait for others.
    assert isinstance(node.ask(4, 1), DelayedResponse)


@pytest.mark.usefixtures("short_turns")
async def test_markers_wait_for_no_large_response() -> None:
    """A thread may be encoding one for the better part of a second, then the next one."""
    node = Node()
    answers = node.ask(1, COUNT), node.ask(2, 1)
    with node.turns.aside():
        async with asyncio.timeout(5):
            await node.until(*answers)


async def test_few_markers_of_a_peer_are_appended_in_the_step_of_their_request() -> None:
    node = Node()
    assert isinstance(node.ask(1, 3), DelayedResponse)
    assert len(node.appended) == 3


@pytest.mark.usefixtures("short_turns")
async def test_markers_that_are_refused_take_turns_too() -> None:
    node = Node()
    node.world.delete_topic("big")
    await node.until(node.ask(1, COUNT))
    turns = [turn for _, _, turn in node.appended]
    assert len(turns) == COUNT
    assert max(turns.count(turn) for turn in turns) <= 2


@pytest.mark.usefixtures("short_turns")
async def test_a_topic_that_is_deleted_between_the_turns_is_unknown() -> None:
    node = Node()
    answer = node.ask(1, COUNT)
    node.world.delete_topic("big")
    ((response),) = await node.until(answer)
    assert isinstance(response, WriteTxnMarkersResponse)
    codes = {one.error_code for one in response.markers[0].topics[0].partitions}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
