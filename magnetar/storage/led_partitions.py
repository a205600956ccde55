"""The partitions that this node leads, in a cluster, where they come and go while it runs.

The catalog says who leads a partition, and this module makes what a node has of a topic agree.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import NodeFenced
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
        #: Who waits for what the catalog says: each looks again when it has said anew who leads.
        self._followers = Waiters()

    async def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Return when `is_so` holds, which says something of who leads; after a while, whether."""
        return await self._followers.until(is_so, timeout_s)

    async def follow(self, topic: Topic, row: TopicRow) -> None:
        """Open what the catalog says that this node leads, and note who leads the rest.

        Raises NodeFenced where another node has taken over a partition that is open here.
        """
        own_id, partitions = self._placement.own_id, topic.partitions
        gained: list[tuple[int, Elsewhere]] = []
        for index, (known, leader) in enumerate(zip(partitions, row.leaders, strict=False)):
            is_own = leader.node_id == own_id
            if isinstance(known, Elsewhere):
                partitions[index] = leader
                if is_own:
                    gained.append((index, leader))
            elif not is_own or leader.leader_epoch > known.leader_epoch:
                raise NodeFenced(
                    f"node {leader.node_id} has taken over {topic.name}-{index}, in epoch"
                    f" {leader.leader_epoch}; this node led it in epoch {known.leader_epoch}"
                )
        if gained:
            await self._gain(topic, gained)
        self._followers.wake()

    async def follow_all(self, rows: Iterable[TopicRow], topics: Mapping[UUID, Topic]) -> None:
        """As `follow`, for each of these topics that is there, the coordinators' first."""
        for row in sorted(rows, key=lambda row: not row.is_internal):
            topic = topics.get(row.id)
            if topic is not None:
                await self.follow(topic, row)

    async def _gain(self, topic: Topic, gained: Sequence[tuple[int, Elsewhere]]) -> None:
        shards = gained if topic.name in INTERNAL else ()
        coming = [TopicPartition(topic.name, index) for index, _ in shards]
        with self.moving.moving(coming) as settle:
            await self._open(topic, gained, settle)

    async def _open(
        self,
        topic: Topic,
        gained: Sequence[tuple[int, Elsewhere]],
        settle: Callable[[TopicPartition], None],
    ) -> None:
        settings = topic.settings
        logs = await self._logs.open_together(
            Opening(topic.name, index, topic.id, settings, leader.leader_epoch)
            for index, leader in gained
        )
        coordinator = self.coordinators.get(topic.name)
        opened = [log for log in logs if log is not None]
        for log in opened:
            begin = None if coordinator is None else await coordinator.load(log)
            # No await from here on: a partition that is led here has its shard.
            if not topic.settings.says_as(settings):
                self._logs.reconfigure(log, topic.settings)
            topic.partitions[log.partition] = log
            for callback in self.on_moved:
                callback(topic.name, log.partition)
            if begin is not None:
                begin()
            settle(TopicPartition(topic.name, log.partition))
        if opened:
            _log.info("partitions are led here now", topic=topic.name, partitions=len(opened))

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

        Who waits for more of them is woken by `reader.on_gone`, once the other nodes know.
        """
        await asyncio.gather(*(log.durable(log.log_end_offset) for log in logs))
        await self._logs.release(logs)
