"""Partitions handed over to other nodes, some at a time, while everything else is served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from logstore.disk.pools import Pool
from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import NodeFenced
from magnetar.logging import get_logger
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leadership import Move
from magnetar.storage.led_partitions import Leaving
from magnetar.storage.topics import Topics
from wire.errors import KafkaError

_T = TypeVar("_T")
_log = get_logger("nodes")

#: Waits for the catalog beside the event loop.
LEADERSHIP = Pool("leadership", 1)
#: When a catalog that has not answered is asked again.
_AGAIN_S = 0.25


class Leaders(Protocol):
    """The catalog, as far as leaders go."""

    def hand_over(self, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
        """As `magnetar.storage.leadership.hand_over`."""
        ...

    def topics(self, topic_ids: Sequence[UUID]) -> list[TopicRow]:
        """Return the topics of these ids, as far as they are there."""
        ...


class HandOver:
    """What this node leads, given to other nodes."""

    def __init__(self, topics: Topics, catalog: Leaders, incarnation: int) -> None:
        self._topics = topics
        self._catalog = catalog
        #: The id and incarnation of this node.
        self.own = (topics.placement.own_id, incarnation)
        #: How many partitions are led neither here nor, as far as is known, by their next leader.
        self.under_way = 0

    async def perform(self, moves: Sequence[Move], tell: Callable[[], Awaitable[None]]) -> None:
        """Let other nodes lead these partitions; return when they may, and `tell` has told them.

        What was appended is durable and answered by then. Requests wait meanwhile, and so do
        fetches that waited already. A partition whose new leader has gone too is led here again.
        Raises NodeFenced, and what `tell` raises.
        """
        # Whole: a hand-over cancelled half way would leave fetches that never hear of it.
        await self._topics.changes.whole(self._perform(moves, tell))

    async def _perform(self, moves: Sequence[Move], tell: Callable[[], Awaitable[None]]) -> None:
        with ExitStack() as until_told:
            logs = await self._topics.changes.alone(partial(self._give, moves, until_told))
            try:
                await tell()
            finally:
                for log in logs:
                    log.reader.on_gone()

    def _named(self, moves: Iterable[Move]) -> Iterator[TopicPartition]:
        for move in moves:
            topic = self._topics.by_id(move.topic_id)
            if topic is not None:
                yield TopicPartition(topic.name, move.partition)

    async def _give(self, moves: Sequence[Move], until_told: ExitStack) -> list[PartitionLog]:
        """Let the partitions go, and have the catalog name their leaders; return their logs."""
        topics, catalog = self._topics, self._catalog
        # Not before: while another change is under way, all of this is served.
        until_told.enter_context(topics.led.moving.moving(self._named(moves)))
        logs = topics.led.leave(
            Leaving(topic, move.partition, move.node_id)
            for move in moves
            if (topic := topics.by_id(move.topic_id)) is not None
        )
        self.under_way = len(logs)
        await topics.led.close(logs)
        # Whatever an unknown outcome was: what has moved is not moved once more.
        if not await _insistently(partial(catalog.hand_over, *self.own, moves)):
            raise NodeFenced("another node has taken over what was to be handed over")
        self.under_way = 0
        moved = [*dict.fromkeys(move.topic_id for move in moves)]
        rows = await _insistently(partial(catalog.topics, moved))
        # One deleted by another node: what is left of it goes with that change.
        await topics.led.follow(
            (topic, row) for row in rows if (topic := topics.by_id(row.id)) is not None
        )
        return logs


async def _insistently(ask: Callable[[], _T]) -> _T:
    """Return what the catalog answers, however long that takes: half a hand-over is none.

    A stop cancels what takes too long.
    """
    is_told = False
    while True:
        try:
            return await LEADERSHIP.run(ask)
        except KafkaError as refusal:
            if not is_told:
                _log.warning("the catalog is asked until it answers", reason=str(refusal))
            is_told = True
            await asyncio.sleep(_AGAIN_S)
