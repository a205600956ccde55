"""Who coordinates a producer, asked of other nodes: unknown only where every shard was asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.transactions.metadata import State, TransactionMetadata
from coordinator.transactions.records import VALUE_VERSION, encode_record
from magnetar.runtime import producers_elsewhere
from magnetar.runtime.peer_messages import (
    FindProducersRequest,
    FindProducersResponse,
    FoundProducer,
)
from magnetar.runtime.peers import PeerUnreachable
from magnetar.runtime.producers_elsewhere import ProducersElsewhere
from tests.magnetar.runtime.responding_peers import RespondingPeers
from wire.internal.transaction_log import TransactionLogValue
from wire.internal.versioned import decode_versioned, encode_versioned
from wire.message import Message

ONGOING = TransactionMetadata("tx", 7, 0, 60_000, State.ONGOING, 0)


def _with_status(status: int) -> bytes:
    """Return the value of a record with this status."""
    value = encode_record(ONGOING).value
    assert value is not None
    record = decode_versioned(TransactionLogValue, value)
    record.transaction_status = status
    return encode_versioned(record, VALUE_VERSION)


class Nodes(RespondingPeers):
    """Nodes 1 and 2; each answer names the shards that are loaded."""

    def __init__(self, *answers: tuple[int, Sequence[int] | None]) -> None:
        self._answers = [*answers]
        #: What each answer names.
        self.producers: list[FoundProducer] = []

    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        assert isinstance(request, FindProducersRequest)
        expected, shards = self._answers.pop(0)
        assert expected == node_id
        if shards is None:
            raise PeerUnreachable(node_id, "it is gone")
        return FindProducersResponse(producers=self.producers, shards=[*shards])


async def unknown(*answers: tuple[int, Sequence[int] | None]) -> bool:
    """Return whether producer 7 is unknown to all: shard 0 is here, 1 and 2 are elsewhere."""
    nodes = Nodes(*answers)
    found = await ProducersElsewhere(nodes, lambda: (None, 1, 2)).find([7])
    assert not nodes._answers
    assert not found.are_all_asked(8), "no node was asked about producer 8"
    return found.are_all_asked(7)


async def test_all_shards_have_answered() -> None:
    assert await unknown((1, [1]), (2, [2]))


async def test_a_shard_may_have_moved_between_those_that_were_asked() -> None:
    assert await unknown((1, [1, 2]), (2, []))


@pytest.mark.parametrize("answer", [None, ()])
async def test_a_node_that_is_silent_or_still_loads_may_know_it(
    answer: Sequence[int] | None,
) -> None:
    assert not await unknown((1, [1]), (2, answer))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # Of a later version: a status, and a kind of record, that this one does not know.
        (encode_record(ONGOING).key, _with_status(99)),
        (b"\x00\x09", encode_record(ONGOING).value),
    ],
)
async def test_a_node_whose_answer_cannot_be_read_may_know_it(key: bytes, value: bytes) -> None:
    nodes = Nodes((1, [1]))
    nodes.producers = [FoundProducer(producer_id=7, key=key, value=value)]
    found = await ProducersElsewhere(nodes, lambda: (1,)).find([7])
    assert not found.found and not found.are_all_asked(7)


async def test_a_shard_that_came_between_two_questions_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers_elsewhere, "ITEMS_PER_CALL_MAX", 1)
    nodes = Nodes((1, []), (1, [0]))
    found = await ProducersElsewhere(nodes, lambda: (1,)).find([7, 8])
    assert not found.are_all_asked(7)
