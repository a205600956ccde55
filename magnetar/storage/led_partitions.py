"""The partitions that this node leads, in a cluster, where they come and go while it runs.

The catalog says which node leads a partition. This module makes what a node has of a topic agree.

A partition comes: requests are told that this node leads it, and to ask again, until its log is
open; a coordinator's shard is loaded in that time too. Log and shard appear in one step. Requests
for a coordinator wait until then (`moving_partitions`).

A partition goes: from one step on nothing is appended to it and nothing of it is coordinated. What
was appended becomes durable and is answered. Then the log is closed, and only then the catalog
says that another node leads it. So no commit of this node can follow the first one of the next.

A partition that goes in another way was taken over: this node is fenced, and must end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from coordinator.transactions.metadata import TopicPartition
from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import LOADED_TOGETHER, NodeFenced
from magnetar.logging import get_logger
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere, Placement
from magnetar.storage.logs import Logs, Opening
from magnetar.storage.moving_partitions import MovingPartitions
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import INTERNAL
from magnetar.storage.waiters import Waiters
from wire.error_code import ErrorCode

_log = get_logger("nodes")


class Coordinator(Protocol):
    """What has its shards in the partitions of one topic."""

    async def load(self, log: PartitionLog) -> Callable[[], None]:
        """Replay the shard whose log this is. The result begins it: call it in the step in which
        the partition is led here."""
        ...

    def unload(self, partition: int) -> None:
        """Forget a shard, and refuse all that waits for it, in the step in which it goes."""
        ...


class _Gained(NamedTuple):
    """A partition that this node is to lead, and has not opened."""

    topic: Topic
    partition: int
    leader_epoch: int


class Leaving(NamedTuple):
    """A partition that is handed over, and the node that is to lead it."""

    topic: Topic
    partition: int
    node_id: int


class LedPartitions:
    """Opens and closes the logs of partitions that move."""

    def __init__(self, placement: Placement, logs: Logs) -> None:
        self._placement = placement
        self._logs = logs
        #: What is handed over, and the coordinators' shards that are loaded.
        self.moving = MovingPartitions()
        #: By the name of the topic: the coordinators, once they have replayed their shards.
        self.coordinators: dict[str, Coordinator] = {}
        #: Called with a topic and one of its partitions, in the step in which it comes or goes.
        #: What is remembered of it may be old then.
        self.on_moved: list[Callable[[str, int], None]] = []
        #: The waits for what the catalog says of leaders: each looks again when that has changed.
        self._followers = Waiters()

    async def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Return when `is_so` holds, which says something of leaders; after a while, whether."""
        return await self._followers.until(is_so, timeout_s)

    async def follow(self, rows: Iterable[tuple[Topic, TopicRow]]) -> None:
        """Open what the catalog says that this node leads, and note the leaders of the rest.

        What comes first is open first. Raises NodeFenced where another node has taken over a
        partition that is open here.
        """
        gained = [one for topic, row in rows for one in self._note(topic, row)]
        if gained:
            await self._gain(gained)
        self._followers.wake()

    def _note(self, topic: Topic, row: TopicRow) -> list[_Gained]:
        """Note the leaders of partitions; return those that are to be opened. Raises NodeFenced."""
        own_id, partitions = self._placement.own_id, topic.partitions
        gained: list[_Gained] = []
        for index, (known, leader) in enumerate(zip(partitions, row.leaders, strict=False)):
            is_own = leader.node_id == own_id
            if isinstance(known, Elsewhere):
                partitions[index] = leader
                if is_own:
                    gained.append(_Gained(topic, index, leader.leader_epoch))
            elif not is_own or leader.leader_epoch > known.leader_epoch:
                raise NodeFenced(
                    f"node {leader.node_id} has taken over {topic.name}-{index}, in epoch"
                    f" {leader.leader_epoch}; this node led it in epoch {known.leader_epoch}"
                )
        return gained

    async def _gain(self, gained: Sequence[_Gained]) -> None:
        names = [TopicPartition(topic.name, index) for topic, index, _ in gained]
        opened: Counter[str] = Counter()
        with self.moving.moving([one for one in names if one.topic in INTERNAL]) as settle:
            # As many as one request to the store loads: none waits for the loads of others.
            for first in range(0, len(gained), LOADED_TOGETHER):
                opened += await self._open(gained[first : first + LOADED_TOGETHER], settle)
        if opened:
            # Not a line for each topic: a node that is taken over may have led thousands.
            of = {"topic": next(iter(opened))} if len(opened) == 1 else {"topics": len(opened)}
            _log.info("partitions are led here now", **of, partitions=opened.total())

    async def _open(
        self, gained: Sequence[_Gained], settle: Callable[[TopicPartition], None]
    ) -> Counter[str]:
        """Open partitions, of whatever topics; return how many of each topic are open now."""
        openings = [
            Opening(topic.name, index, topic.id, topic.settings, epoch)
            for topic, index, epoch in gained
        ]
        opened: Counter[str] = Counter()
        logs = await self._logs.open_together(openings)
        for (topic, _, _), opening, log in zip(gained, openings, logs, strict=True):
            if log is None:
                continue
            coordinator = self.coordinators.get(topic.name)
            begin = None if coordinator is None else await coordinator.load(log)
            # No await from here on: a partition that is led here has its shard.
            if not topic.settings.says_as(opening.config):
                self._logs.reconfigure(topic.name, [log], topic.settings)
            topic.partitions[log.partition] = log
            for callback in self.on_moved:
                callback(topic.name, log.partition)
            if begin is not None:
                begin()
            settle(TopicPartition(topic.name, log.partition))
            opened[topic.name] += 1
        return opened

    def leave(self, leaving: Iterable[Leaving]) -> list[PartitionLog]:
        """Let go of partitions that are led here, in this step; return their logs.

        `close` is to follow. Until the catalog says so too, other nodes still name this one.
        """
        logs = []
        for topic, partition, node_id in leaving:
            log = topic.partitions[partition]
            if isinstance(log, Elsewhere):
                continue
            coordinator = self.coordinators.get(topic.name)
            if coordinator is not None:
                coordinator.unload(partition)
            is_shard = topic.name in INTERNAL
            log.become_moved(
                ErrorCode.NOT_COORDINATOR if is_shard else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            topic.partitions[partition] = Elsewhere(node_id, log.leader_epoch)
            for callback in self.on_moved:
                callback(topic.name, partition)
            logs.append(log)
        return logs

    async def close(self, logs: Sequence[PartitionLog]) -> None:
        """Return when all that was appended to these logs is durable and answered, and they are
        closed. Raises StorageFailure.

        `reader.on_gone` wakes the fetches that wait for more of them, once the other nodes know.
        """
        await asyncio.gather(*(log.durable(log.log_end_offset) for log in logs))
        await self._logs.release(logs)
