"""Large messages are freed piece by piece."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, cast

from magnetar.server.releasing import PIECE, pieces
from tests.magnetar.conftest import RawClient
from wire.message import Message
from wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

freed: list[str] = []


class Counted(str):
    """A name that says when it is freed."""

    __slots__ = ()

    def __del__(self) -> None:
        freed.append(str(self))


def response(topics: int, partitions: int) -> MetadataResponse:
    """Return a response that counts what is freed: each topic, and each topic of a partition."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                name=Counted(f"topic-{number}"),
                partitions=[
                    MetadataResponsePartition(partition_index=cast(Any, Counted("partition")))
                    for _ in range(partitions)
                ],
            )
            for number in range(topics)
        ]
    )


def steps(held: list[Message]) -> list[int]:
    """Return how many elements were freed in each step."""
    counts = []
    freed.clear()
    for _ in pieces(held):
        counts.append(len(freed))
        freed.clear()
    return counts


def test_no_step_frees_more_than_a_piece_however_deep_the_elements_lie() -> None:
    for topics, partitions in ((5 * PIECE, 0), (1, 5 * PIECE), (2 * PIECE, 10), (10, 2 * PIECE)):
        counts = steps([response(topics, partitions)])
        assert max(counts) <= PIECE
        assert sum(counts) == topics * (1 + partitions)


def test_what_others_refer_to_stays_as_it_is() -> None:
    whole = response(3, PIECE)
    kept = whole.topics
    held: list[Message] = [whole]
    del whole
    assert steps(held) == [0] * len(range(0, 1 + 3 + 3 * PIECE, PIECE))
    assert [len(topic.partitions) for topic in kept] == [PIECE] * 3


async def test_a_large_request_that_is_refused_is_freed(client: RawClient) -> None:
    """No cycle keeps it until a full collection, which would hold the event loop for long."""
    names = [f"{number}" for number in range(20_000)]
    client.send(DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names]), 6)
    gc.collect()
    gc.disable()
    try:
        await client.receive()
        deadline = time.monotonic() + 10
        while structs() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert structs() == 0
    finally:
        gc.enable()


def structs() -> int:
    """Return how many parts of the request, and of its answer, there are."""
    kinds = (DeleteTopicState, DeletableTopicResult)
    return sum(type(each) in kinds for each in gc.get_objects())
