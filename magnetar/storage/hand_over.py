"""Partitions handed over to other nodes, some at a time, while everything else is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

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

    def topic(self, topic_id: UUID) -> TopicRow | None:
        """Return the topic of that id, if there is one."""
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

    async def perform(self, moves: Sequence[Move]) -> list[PartitionLog]:
        """Let other nodes lead these partitions; return their logs when these may open them.

        What was appended is durable and answered by then. Who waits for more is woken by
        `reader.on_gone`, which is to be called once the other nodes know. A partition whose new
        leader has gone too is led here again. Raises NodeFenced.
        """
        return await self._topics.alone(partial(self._perform, moves))

    async def _perform(self, moves: Sequence[Move]) -> list[PartitionLog]:
        topics, catalog = self._topics, self._catalog
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
        for topic_id in dict.fromkeys(move.topic_id for move in moves):
            row = await _insistently(partial(catalog.topic, topic_id))
            topic = topics.by_id(topic_id)
            # Deleted, by another node: what is left of it goes with that change.
            if row is not None and topic is not None:
                await topics.led.follow(topic, row)
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
