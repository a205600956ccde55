"""Questions to peers share calls: one to each peer at a time, the rest rides the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.runtime.peer_messages import (
    FindProducersRequest,
    FindProducersResponse,
    FoundProducer,
)
from magnetar.runtime.peers import ITEMS_PER_CALL_MAX, PeerUnreachable, SharedCalls
from tests.magnetar.runtime.responding_peers import RespondingPeers
from wire.message import Message


def encode(items: Sequence[int]) -> Message:
    return FindProducersRequest(producer_ids=[*items])


def decode(response: Message) -> list[int]:
    assert isinstance(response, FindProducersResponse)
    return [found.producer_id for found in response.producers]


class Peer(RespondingPeers):
    """Answers each question with its double, once it is let."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None
        self.calls = SharedCalls(self, 0, encode, decode)

    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        assert isinstance(request, FindProducersRequest)
        self.asked.append((node_id, request.producer_ids))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        doubles = [FoundProducer(producer_id=2 * item) for item in request.producer_ids]
        return FindProducersResponse(producers=doubles)


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_while_a_call_is_under_way_rides_the_next() -> None:
    peer = Peer()
    first = peer.calls.ask(1, 0)
    await steps(2)
    others = [peer.calls.ask(1, item) for item in (1, 2, 3)]
    await steps(2)
    peer.may_answer.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6]
    assert peer.asked == [(1, [0]), (1, [1, 2, 3])]
    assert peer.calls.call_count == 2


async def test_what_one_step_asks_is_one_call() -> None:
    peer = Peer()
    peer.may_answer.set()
    assert await asyncio.gather(*(peer.calls.ask(1, item) for item in (1, 2))) == [2, 4]
    assert peer.asked == [(1, [1, 2])]


async def test_a_slow_peer_keeps_nobody_waiting_for_another() -> None:
    peer = Peer()
    asking = [peer.calls.ask(node_id, node_id) for node_id in (1, 2)]
    await steps(2)
    assert [node_id for node_id, _ in peer.asked] == [1, 2]
    peer.may_answer.set()
    assert await asyncio.gather(*asking) == [2, 4]


async def test_a_call_has_a_bound_and_the_rest_follows() -> None:
    peer = Peer()
    peer.may_answer.set()
    items = range(2 * ITEMS_PER_CALL_MAX + 1)
    told = await asyncio.gather(*(peer.calls.ask(1, item) for item in items))
    assert told == [2 * item for item in items]
    assert [len(asked) for _, asked in peer.asked] == [ITEMS_PER_CALL_MAX, ITEMS_PER_CALL_MAX, 1]


async def test_everybody_hears_that_the_peer_does_not_answer_and_may_ask_again() -> None:
    peer = Peer()
    peer.may_answer.set()
    peer.failure = PeerUnreachable(1, "it is gone")
    asking = (peer.calls.ask(1, item) for item in (1, 2))
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in told] == [PeerUnreachable, PeerUnreachable]
    peer.failure = None
    assert await peer.calls.ask(1, 7) == 14


@pytest.mark.parametrize("count", [1, 3 * ITEMS_PER_CALL_MAX])
async def test_who_waits_for_the_next_call_hears_it_too(count: int) -> None:
    """The next call would hang as long, and by then another node may have the answer."""
    peer = Peer()
    first = peer.calls.ask(1, 0)
    await steps(2)
    behind = [peer.calls.ask(1, item) for item in range(count)]
    peer.failure = PeerUnreachable(1, "it hangs")
    peer.may_answer.set()
    told = await asyncio.gather(first, *behind, return_exceptions=True)
    assert [type(one) for one in told] == [PeerUnreachable] * (1 + count)
    assert peer.asked == [(1, [0])]
    peer.failure = None
    assert await peer.calls.ask(1, 7) == 14


async def test_who_gives_up_does_not_disturb_the_others() -> None:
    peer = Peer()
    given_up, other = (peer.calls.ask(1, item) for item in (1, 2))
    await steps(2)
    given_up.cancel()
    peer.may_answer.set()
    assert await other == 4
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_what_was_given_up_before_its_call_is_not_sent() -> None:
    peer = Peer()
    first = peer.calls.ask(1, 0)
    await steps(2)
    given_up, other, last = (peer.calls.ask(1, item) for item in (1, 2, 3))
    given_up.cancel()
    last.cancel()
    peer.may_answer.set()
    assert [await first, await other] == [0, 4]
    assert peer.asked == [(1, [0]), (1, [2])]
    # Where nothing is left, there is no call, and later questions have theirs.
    peer.calls.ask(1, 4).cancel()
    await steps(2)
    assert await peer.calls.ask(1, 5) == 10
    assert peer.asked[2:] == [(1, [5])]


async def test_the_end_gives_up_what_waits_for_a_call_too() -> None:
    peer = Peer()
    under_way = peer.calls.ask(1, 1)
    await steps(2)
    behind = peer.calls.ask(1, 2)
    peer.calls.cancel()
    for one in (under_way, behind):
        with pytest.raises(asyncio.CancelledError):
            await one
