"""How a node of a cluster changes leaders: it takes over, hands over, prefers, evens out.

The catalog says which node leads what. The rules for a change, and the statements that write it to
the catalog, are in `magnetar.storage.leadership`; `cluster_node` says when it is time for one. If
several nodes try to take over the same dead node, the catalog lets one of them succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from magnetar.logging import get_logger
from magnetar.storage.hand_over import LEADERSHIP, HandOver
from magnetar.storage.leaders import Elsewhere, leader_id
from magnetar.storage.leadership import (
    Led,
    Move,
    TopicLeaders,
    evened,
    in_steps,
    inheritance,
    misplaced,
)
from magnetar.storage.replicas import Replicas
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import INTERNAL
from magnetar.storage.topics import Topics

_log = get_logger("nodes")


class Fences(Protocol):
    """The catalog, as far as it says which nodes are dead, and which leave."""

    def begin_to_leave(self, node_id: int, incarnation: int) -> None:
        """From now on no other node gives this incarnation a partition to lead."""
        ...

    def take_over(self, node_id: int, incarnation: int) -> int | None:
        """As `magnetar.storage.leadership.take_over`."""
        ...


class Changes(Protocol):
    """Changes of the catalog, as all nodes learn of them."""

    async def see_changes(self) -> int:
        """Apply the catalog's changes here."""
        ...

    async def tell_changes(self) -> None:
        """Return when every node has applied them, or after a second."""
        ...


class Excess(NamedTuple):
    """How many partitions nodes had to give, when their shares were looked at."""

    own: int
    """Of this node, also those that it does not serve yet, and so cannot give."""
    others: int


class LeaderChanges:
    """One node's part in the choice of leaders."""

    def __init__(
        self, topics: Topics, catalog: Fences, changes: Changes, hand_over: HandOver
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._changes = changes
        self._hand_over = hand_over

    @property
    def led_count(self) -> int:
        """How many partitions this node leads, by what it has read of the catalog."""
        return len(self._led()) + self._hand_over.under_way

    async def take_over(self, node_id: int, incarnation: int) -> bool:
        """Give what a node led to live nodes, if its lease has ended; return whether it had.

        What this node takes is open on return.
        """
        dead, take_over = incarnation, self._catalog.take_over
        while (fenced := await LEADERSHIP.run(partial(take_over, node_id, dead))) is not None:
            dead = fenced
        if dead == incarnation:
            return False
        _log.warning("a node was taken over", node_id=node_id, incarnation=incarnation)
        # The others first: this node opens its part in the time that they take.
        await asyncio.gather(self._changes.tell_changes(), self._changes.see_changes())
        return True

    async def drain(self, live: Collection[int]) -> int:
        """Hand over all partitions of this node before it stops; return how many.

        `live` are the nodes that have a lease. Without another node nothing moves.
        """
        others = [node_id for node_id in live if node_id != self._topics.placement.own_id]
        if not others:
            return 0
        # First, or other nodes would give back at once what is assigned to this node.
        await LEADERSHIP.run(partial(self._catalog.begin_to_leave, *self._hand_over.own))
        # A take-over may have given this node partitions until then: they are handed over as well.
        await self._changes.see_changes()
        moves = partial(inheritance, self._led(), others, self._assigned())
        return await self._perform(await LEADERSHIP.run(moves))

    def misplaced(self, live: Collection[int]) -> list[Move]:
        """Return what this node leads and another one is assigned to lead."""
        return misplaced(self._topics.placement.own_id, self._assigned(), live)

    async def prefer(self, live: Collection[int]) -> int:
        """Hand over what another node is assigned to lead."""
        return await self._perform(self.misplaced(live))

    async def even_out(self, live: Collection[int]) -> Excess:
        """Hand over what another node is assigned to lead. Also hand over what this node leads
        beyond its share, of a topic or of all topics, to nodes that lead less than theirs.

        A partition with a living assigned replica counts for its leader's share, but does not move
        for the sake of shares. What others give may leave this node with more than its share.
        """
        if self._topics.placement.own_id not in live:
            # This node leaves, or its lease has ended: all its partitions move anyway.
            return Excess(0, 0)
        preferred = await self.prefer(live)
        topics = self._topics.all()
        # In a thread, also the look at each topic: ten thousand partitions take too long for a
        # step. What moves meanwhile is seen as it was or as it is.
        leaders = (self._leaders_of(topic, live) for topic in topics)
        moves = await LEADERSHIP.run(partial(evened, leaders, live))
        own = [move for move in moves if self._is_own(move)]
        await self._perform([move for move in own if self._is_open(move)])
        return Excess(preferred + len(own), len(moves) - len(own))

    def _is_own(self, move: Move) -> bool:
        """Return whether this node leads a partition, also if the partition is not open yet."""
        topic, own_id = self._topics.by_id(move.topic_id), self._topics.placement.own_id
        return topic is not None and leader_id(topic.partitions[move.partition], own_id) == own_id

    def _is_open(self, move: Move) -> bool:
        """Return whether a partition is led here, and is open."""
        topic = self._topics.by_id(move.topic_id)
        return topic is not None and not isinstance(topic.partitions[move.partition], Elsewhere)

    def _leaders_of(self, topic: Topic, live: Collection[int]) -> TopicLeaders:
        own_id = self._topics.placement.own_id
        node_ids = [leader_id(one, own_id) for one in topic.partitions]
        held = {index for index, replicas in topic.assigned.items() if {*replicas} & {*live}}
        return TopicLeaders(topic.id, node_ids, held)

    def _assigned(self) -> dict[Led, Replicas]:
        """Return the assigned replicas of what this node leads."""
        return {
            Led(topic.id, index): replicas
            for topic in self._topics.all()
            for index, replicas in topic.assigned.items()
            if index < len(topic.partitions) and not isinstance(topic.partitions[index], Elsewhere)
        }

    def _led(self) -> list[Led]:
        return [Led(topic.id, log.partition) for topic in self._topics.all() for log in topic.local]

    async def _perform(self, moves: Sequence[Move]) -> int:
        shards = {
            Led(topic.id, log.partition): log.size_bytes
            for topic in self._topics.all()
            if topic.name in INTERNAL
            for log in topic.local
        }
        count = 0
        for step in await LEADERSHIP.run(lambda: [*in_steps(moves, shards)]):
            await self._hand_over.perform(step, self._changes.tell_changes)
            count += len(step)
        if count:
            _log.info("partitions handed over", partitions=count)
        return count
