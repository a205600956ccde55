"""Who coordinates a producer, asked of other nodes: unknown only where every shard was asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from magnetar.runtime import producers_elsewhere
from magnetar.runtime.peer_messages import FindProducersRequest, FindProducersResponse
from magnetar.runtime.peers import PeerUnreachable
from magnetar.runtime.producers_elsewhere import ProducersElsewhere
from tests.magnetar.runtime.responding_peers import RespondingPeers
from wire.message import Message


class Nodes(RespondingPeers):
    """Nodes 1 and 2; each answer names the shards that are loaded."""

    def __init__(self, *answers: tuple[int, Sequence[int] | None]) -> None:
        self._answers = [*answers]

    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        assert isinstance(request, FindProducersRequest)
        expected, shards = self._answers.pop(0)
        assert expected == node_id
        if shards is None:
            raise PeerUnreachable(node_id, "it is gone")
        return FindProducersResponse(producers=[], shards=[*shards])


async def unknown(*answers: tuple[int, Sequence[int] | None]) -> bool:
    """Return whether producer 7 is unknown to all: shard 0 is here, 1 and 2 are elsewhere."""
    nodes = Nodes(*answers)
    found = await ProducersElsewhere(nodes, lambda: (None, 1, 2)).find([7])
    assert not nodes._answers
    assert not found.is_everybody_asked(8), "no node was asked about producer 8"
    return found.is_everybody_asked(7)


async def test_all_shards_have_answered() -> None:
    assert await unknown((1, [1]), (2, [2]))


async def test_a_shard_may_have_moved_between_those_that_were_asked() -> None:
    assert await unknown((1, [1, 2]), (2, []))


@pytest.mark.parametrize("answer", [None, ()])
async def test_a_node_that_is_silent_or_still_loads_may_know_it(
    answer: Sequence[int] | None,
) -> None:
    assert not await unknown((1, [1]), (2, answer))


async def test_a_shard_that_came_between_two_questions_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers_elsewhere, "ITEMS_PER_CALL_MAX", 1)
    nodes = Nodes((1, []), (1, [0]))
    found = await ProducersElsewhere(nodes, lambda: (1,)).find([7, 8])
    assert not found.is_everybody_asked(7)
