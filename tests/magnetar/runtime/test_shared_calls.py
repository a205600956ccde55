"""Questions to peers share calls: one to each peer at a time, the rest rides the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.runtime.peers import ITEMS_PER_CALL_MAX, PeerUnreachable, SharedCalls


class Peer:
    """Answers each question with its double, once it is let."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def perform(self, node_id: int, items: Sequence[int]) -> list[int]:
        self.asked.append((node_id, [*items]))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [2 * item for item in items]


async def test_what_comes_while_a_call_is_under_way_rides_the_next() -> None:
    peer = Peer()
    calls = SharedCalls(peer.perform)
    first = asyncio.create_task(calls.ask(1, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(calls.ask(1, item)) for item in (1, 2, 3)]
    await asyncio.sleep(0)
    peer.may_answer.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6]
    assert peer.asked == [(1, [0]), (1, [1, 2, 3])]
    assert calls.call_count == 2


async def test_a_slow_peer_keeps_nobody_waiting_for_another() -> None:
    peer = Peer()
    calls = SharedCalls(peer.perform)
    asking = [asyncio.create_task(calls.ask(node_id, node_id)) for node_id in (1, 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [node_id for node_id, _ in peer.asked] == [1, 2]
    peer.may_answer.set()
    assert await asyncio.gather(*asking) == [2, 4]


async def test_a_call_has_a_bound_and_the_rest_follows() -> None:
    peer = Peer()
    peer.may_answer.set()
    calls = SharedCalls(peer.perform)
    items = range(2 * ITEMS_PER_CALL_MAX + 1)
    assert await asyncio.gather(*(calls.ask(1, item) for item in items)) == [2 * i for i in items]
    assert [len(asked) for _, asked in peer.asked] == [ITEMS_PER_CALL_MAX, ITEMS_PER_CALL_MAX, 1]


async def test_everybody_hears_that_the_peer_does_not_answer_and_may_ask_again() -> None:
    peer = Peer()
    peer.may_answer.set()
    peer.failure = PeerUnreachable(1, "it is gone")
    calls = SharedCalls(peer.perform)
    told = await asyncio.gather(*(calls.ask(1, item) for item in (1, 2)), return_exceptions=True)
    assert [type(one) for one in told] == [PeerUnreachable, PeerUnreachable]
    peer.failure = None
    assert await calls.ask(1, 7) == 14


async def test_who_gives_up_does_not_disturb_the_others() -> None:
    peer = Peer()
    calls = SharedCalls(peer.perform)
    given_up, other = (asyncio.create_task(calls.ask(1, item)) for item in (1, 2))
    await asyncio.sleep(0)
    given_up.cancel()
    peer.may_answer.set()
    assert await other == 4
    with pytest.raises(asyncio.CancelledError):
        await given_up
