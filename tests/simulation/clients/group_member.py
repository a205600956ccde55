"""Members of groups: each takes over where the last owner of a partition has committed.

A member reads nothing: it moves its positions forward and commits them, so that the offsets of a
group tell whether two members have ever owned a partition at once, or a commit was lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.connection import Connection
from tests.simulation.observations import Committed, Observations, Owned
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import (
    consumer_group_heartbeat,
    heartbeat,
    join_group,
    metadata,
    offset_commit,
    offset_fetch,
    sync_group,
)

SESSION_MS = 1_500
_PROTOCOL = "simulated"
#: The group goes on without this member, or in another generation.
_REJOIN = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
}
_BEGIN_ANEW = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


class Rejoin(Exception):
    """The member owns nothing any more until it has joined again."""


class GroupMember:
    """What both protocols share: positions, and offsets fetched and committed."""

    def __init__(
        self,
        name: str,
        group_id: str,
        connection: Connection,
        partitions: list[TopicPartition],
        seen: Observations,
        random: Random,
    ) -> None:
        self.name = name
        self.group_id = group_id
        self.member_id = ""
        self.epoch = -1
        self.is_ending = False
        self._connection = connection
        self._partitions = partitions
        self._seen = seen
        self._random = random
        self._positions: dict[TopicPartition, int] = {}
        #: What it was told of those that it has.
        self._owned: dict[TopicPartition, Owned] = {}
        self._deaf_until_s = 0.0
        self._late: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Join and work until told to end. The end is that of a killed process: nothing is sent."""
        while not self.is_ending:
            try:
                await self._join()
                while not self.is_ending:
                    await self._work()
                    await asyncio.sleep(self._random.choice((0.01, 0.1, 0.1, 0.3, 2.0)))
            except (Gone, Rejoin):
                self._positions.clear()
                self._owned.clear()
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    async def _join(self) -> None:
        raise NotImplementedError

    async def _beat(self) -> None:
        raise NotImplementedError

    async def _work(self) -> None:
        # For a while it may hear nothing of its group, and go on with what it has.
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._deaf_until_s:
            if self._random.random() < 0.15:
                self._deaf_until_s = now_s + self._random.choice((0.3, 0.8, 1.8))
            else:
                # What it has now: the answer may take some of it away.
                held = [self._owned[each] for each in self._positions]
                await self._beat()
                for each in held:
                    each.confirmed_s = now_s
        if self._positions and self._random.random() < 0.7:
            await self._commit(self._random.choice(list(self._positions)))

    async def _own(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with these partitions, each where the group has committed."""
        owned = set(partitions)
        self._lose(self._positions.keys() - owned)
        for partition in sorted(owned - self._owned.keys()):
            now_s = asyncio.get_running_loop().time()
            self._owned[partition] = Owned(self.group_id, partition, self.name, now_s)
            self._seen.owned.append(self._owned[partition])
        for partition in sorted(owned - self._positions.keys()):
            self._positions[partition] = await self._fetch(partition)

    def _lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Own these no more: the group goes on without. A commit may still be on its way, and must
        not count any more when it arrives."""
        lost = sorted(partitions)
        if lost and self._random.random() < 0.5:
            partition = self._random.choice(lost)
            offset = self._positions[partition]
            late = self._commit_of(partition, offset)
            task = asyncio.create_task(self._arrive_late(late))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        for partition in lost:
            self._positions.pop(partition)
            self._owned.pop(partition)

    async def _arrive_late(self, request: offset_commit.OffsetCommitRequest) -> None:
        await asyncio.sleep(self._random.choice((0.1, 0.4, 1.0, 2.0)))
        if not self._is_late(request):
            return
        with suppress(Gone):
            await self._connection.ask(request, offset_commit.OffsetCommitResponse, 9)

    def _is_late(self, request: offset_commit.OffsetCommitRequest) -> bool:
        """Return whether the coordinator must refuse a commit of partitions that were lost."""
        return True

    async def _fetch(self, partition: TopicPartition) -> int:
        topic = offset_fetch.OffsetFetchRequestTopics(
            name=partition.topic, partition_indexes=[partition.partition]
        )
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self.group_id, topics=[topic])
        request = offset_fetch.OffsetFetchRequest(groups=[group], require_stable=True)
        asked_s = asyncio.get_running_loop().time()
        answer = await self._connection.ask(request, offset_fetch.OffsetFetchResponse, 8)
        self._check(answer.groups[0].error_code, "OffsetFetch")
        found = answer.groups[0].topics[0].partitions[0]
        self._check(found.error_code, "OffsetFetch")
        offset = max(found.committed_offset, 0)
        self._note(partition, offset, asked_s, is_fetch=True)
        return offset

    async def _commit(self, partition: TopicPartition) -> None:
        offset = self._positions[partition] + self._random.randint(1, 5)
        request = self._commit_of(partition, offset)
        asked_s = asyncio.get_running_loop().time()
        answer = await self._connection.ask(request, offset_commit.OffsetCommitResponse, 9)
        self._check(answer.topics[0].partitions[0].error_code, "OffsetCommit")
        self._positions[partition] = offset
        self._note(partition, offset, asked_s, is_fetch=False)

    def _commit_of(
        self, partition: TopicPartition, offset: int
    ) -> offset_commit.OffsetCommitRequest:
        """Return the commit of an offset, by this member as it is now."""
        committed = offset_commit.OffsetCommitRequestPartition(
            partition_index=partition.partition, committed_offset=offset
        )
        return offset_commit.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[
                offset_commit.OffsetCommitRequestTopic(name=partition.topic, partitions=[committed])
            ],
        )

    def _note(
        self, partition: TopicPartition, offset: int, asked_s: float, *, is_fetch: bool
    ) -> None:
        told_s = asyncio.get_running_loop().time()
        self._seen.committed.append(
            Committed(self.group_id, partition, offset, asked_s, told_s, is_fetch)
        )

    def _check(self, code: int, what: str) -> None:
        """Return where all is well. Rejoin: not any more. Gone: not yet."""
        if code in _BEGIN_ANEW or code in _REJOIN:
            self._lose(self._positions)
        if code in _BEGIN_ANEW:
            self.member_id, self.epoch = "", -1
            raise Rejoin
        if code in _REJOIN:
            raise Rejoin
        if code in _AGAIN:
            raise Gone
        if code:
            self._seen.witnesses.append(
                f"refused: {self.name}: {what} answered {ErrorCode(code).name}"
            )
            raise Rejoin


class ClassicMember(GroupMember):
    """A member of the classic protocol. The leader deals the partitions out."""

    def _is_late(self, request: offset_commit.OffsetCommitRequest) -> bool:
        # A coordinator that was killed may have lost the next generation, and give this one again.
        is_the_same = (request.member_id, request.generation_id_or_member_epoch) == (
            self.member_id,
            self.epoch,
        )
        return not (self._owned and is_the_same)

    async def _join(self) -> None:
        self._positions.clear()
        self._owned.clear()
        request = join_group.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=2 * SESSION_MS,
            member_id=self.member_id,
            protocol_type=_PROTOCOL,
            protocols=[join_group.JoinGroupRequestProtocol(name="deal", metadata=b"")],
        )
        joined = await self._connection.ask(request, join_group.JoinGroupResponse, 5)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            raise Rejoin
        self._check(joined.error_code, "JoinGroup")
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        dealt: dict[str, list[list[object]]] = {each.member_id: [] for each in joined.members}
        for index, partition in enumerate(self._partitions if dealt else ()):
            dealt[list(dealt)[index % len(dealt)]].append(list(partition))
        syncing = sync_group.SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            assignments=[
                sync_group.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=json.dumps(owned).encode()
                )
                for member_id, owned in dealt.items()
            ],
        )
        synced = await self._connection.ask(syncing, sync_group.SyncGroupResponse, 3)
        self._check(synced.error_code, "SyncGroup")
        owned = json.loads(synced.assignment or b"[]")
        await self._own(TopicPartition(topic, index) for topic, index in owned)

    async def _beat(self) -> None:
        request = heartbeat.HeartbeatRequest(
            group_id=self.group_id, generation_id=self.epoch, member_id=self.member_id
        )
        answer = await self._connection.ask(request, heartbeat.HeartbeatResponse, 3)
        self._check(answer.error_code, "Heartbeat")


class ConsumerMember(GroupMember):
    """A member of the consumer protocol (KIP-848). The broker assigns."""

    _topics: dict[UUID, str]
    #: The last epoch that the coordinator has told.
    _told_epoch = -1

    def _is_late(self, request: offset_commit.OffsetCommitRequest) -> bool:
        # As in Kafka: one that has more to give back keeps its epoch, and what it sends counts.
        return (
            request.member_id != self.member_id
            or request.generation_id_or_member_epoch < self._told_epoch
        )

    async def _join(self) -> None:
        names = sorted({partition.topic for partition in self._partitions})
        asking = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in names]
        )
        told = await self._connection.ask(asking, metadata.MetadataResponse, 12)
        self._topics = {topic.topic_id: topic.name or "" for topic in told.topics}
        self._positions.clear()
        self._owned.clear()
        self.epoch = 0
        if not self.member_id:
            self.member_id = f"{self.name}-{self._random.getrandbits(32)}"
        await self._beat(names)

    async def _beat(self, names: list[str] | None = None) -> None:
        owned: dict[UUID, list[int]] = {}
        for topic_id, name in self._topics.items():
            indexes = [each.partition for each in self._positions if each.topic == name]
            if indexes:
                owned[topic_id] = indexes
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=2 * SESSION_MS,
            subscribed_topic_names=names,
            topic_partitions=[
                consumer_group_heartbeat.TopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in owned.items()
            ],
        )
        answer = await self._connection.ask(
            request, consumer_group_heartbeat.ConsumerGroupHeartbeatResponse, 1
        )
        self._check(answer.error_code, "ConsumerGroupHeartbeat")
        self.epoch = self._told_epoch = answer.member_epoch
        if answer.assignment is not None:
            await self._own(
                TopicPartition(self._topics[topic.topic_id], index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            )
