"""Offsets of groups: committed, read, committed inside transactions, deleted and expired.

The rules are in `coordinator.groups`: `committing`, `offsets` and `deletion`. A commit is answered
when its record is durable. A read is answered when the log is durable up to its end at the moment
of reading. So a power loss takes back no offset that a client has read, and a read misses no commit
that has returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from coordinator.groups.classic.requests import check_group_id
from coordinator.groups.committing import (
    Commit,
    CommitDecision,
    Committer,
    acceptable,
    check_committer,
    check_fetch,
    keep_alive,
)
from coordinator.groups.deletion import EXPIRED_AT_ONCE, decide_expiry, decide_offset_deletion
from coordinator.groups.offsets.committed import NO_TOPIC_ID
from coordinator.groups.offsets.pending_acks import check_conflicts
from coordinator.groups.offsets.store import LookedUp
from logstore.partition.log import PartitionLog
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.background import Tasks
from magnetar.runtime.group_shards import RECORD_FORMAT, GroupShards, RunningGroupShard
from magnetar.runtime.group_timers import GroupTimers
from magnetar.runtime.turns import Turns
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.offset_commit import OffsetCommitRequestTopic
from wire.messages.txn_offset_commit import TxnOffsetCommitRequestTopic
from wire.records import EncodedRecords, encode_records
from wire.types import INT32_MAX

#: How many offsets of a deleted topic are deleted before other work gets a turn: about 0.5 ms.
_DELETED_AT_ONCE = 64
#: A request for more offsets than this asks for a turn first: this many take about 0.3 ms.
_FETCHED_AT_ONCE = 256

#: The size of a request is estimated only beyond so many offsets. A topic has no more partitions.
_COMMITS_UNCOUNTED = 10_000
#: The fewest bytes of a commit in the log, beside its group's id: a record's frame of 7 bytes, 10
#: of key and 24 of value, without the topic's name.
_COMMIT_BYTES_MIN = 41


class Committed(NamedTuple):
    """A code for each commit, in order. Answer once the log is durable up to `end_offset`."""

    codes: list[ErrorCode]
    log: PartitionLog
    end_offset: int


class Prepared(NamedTuple):
    """Many commits after the work that does not need the group's state."""

    acceptable: CommitDecision
    encoded: EncodedRecords | None
    """The bytes of the acceptable records. None: there are none."""


class OffsetQuery(NamedTuple):
    """Partitions of one topic whose committed offsets are asked for."""

    topic: str
    partitions: Sequence[int]
    topic_id: UUID = NO_TOPIC_ID
    """NO_TOPIC_ID stands for the topic that has this name now."""


class GroupOffsets:
    """What groups commit and read."""

    def __init__(
        self,
        shards: GroupShards,
        timers: GroupTimers,
        topics: Topics,
        clock: Clock,
        config: BrokerConfig,
        tasks: Tasks,
        turns: Turns,
    ) -> None:
        self._shards = shards
        self._timers = timers
        self._tasks = tasks
        self._turns = turns
        self._topics = topics
        self._clock = clock
        self._config = config

    @property
    def commit_timeout_s(self) -> float:
        """How long a commit may wait until it is durable."""
        return self._config.offsets_commit_timeout_ms / 1000

    def check_size(
        self,
        group_id: str,
        topics: Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic],
    ) -> int:
        """Return how many offsets a request commits.

        Raises INVALID_COMMIT_OFFSET_SIZE where so many cannot fit into one batch. Call it before
        the offsets are looked at, which takes half a second for a hundred thousand.
        """
        count = sum(len(topic.partitions) for topic in topics)
        if count <= _COMMITS_UNCOUNTED:
            return count
        bytes_min = count * (_COMMIT_BYTES_MIN + len(group_id))
        bytes_max = self._shards.of(group_id).log.config.max_message_bytes
        if bytes_min > bytes_max:
            detail = f"{count} offsets take {bytes_min} bytes at least, at most {bytes_max}"
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, detail)
        return count

    def prepare(self, group_id: str, commits: Sequence[Commit]) -> Prepared:
        """Return many commits with their bytes. May run in a thread: 9,000 of them take 30 ms."""
        accepted = self._acceptable(group_id, commits)
        now_ms = self._clock.steady_ms()
        # No bound on the size of a record: the log refuses a batch that is too large.
        records = [RECORD_FORMAT.encode(each, now_ms, INT32_MAX) for each in accepted.records]
        return Prepared(accepted, encode_records(records) if records else None)

    def _acceptable(self, group_id: str, commits: Sequence[Commit]) -> CommitDecision:
        return acceptable(group_id, commits, self._config.offset_metadata_max_bytes)

    def commit(
        self,
        committer: Committer,
        commits: Sequence[Commit],
        prepared: Prepared | None = None,
        *,
        knows_group_not_found: bool,
    ) -> Committed:
        """Append the commits that are accepted; return a code for each, and what to await.

        OFFSET_METADATA_TOO_LARGE is the code of one commit. What is raised refuses all of them:
        as `check_committer`, INVALID_COMMIT_OFFSET_SIZE, POLICY_VIOLATION. `prepared`: what
        `prepare` has returned for the commits, if they are many.
        """
        group_id = committer.group_id
        accepted, encoded = prepared or (self._acceptable(group_id, commits), None)
        shard = self._shards.of(group_id)
        self._shards.check_count(group_id, shard.state)
        now_ms = self._clock.steady_ms()
        check_committer(
            shard.state,
            committer,
            accepted.records,
            transactional=False,
            knows_group_not_found=knows_group_not_found,
        )
        # Before the append: the member lives on, even if its commit is too large.
        deadline_ms = keep_alive(shard.state, committer, now_ms)
        try:
            end_offset = shard.append(accepted.records, now_ms, encoded=encoded)
        except KafkaError as refusal:
            raise _of_commit(refusal) from None
        self._timers.watch(group_id, deadline_ms, now_ms)
        return Committed(accepted.answer, shard.log, end_offset)

    def commit_in_transaction(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        commits: Sequence[Commit],
        prepared: Prepared | None = None,
        *,
        knows_group_not_found: bool,
    ) -> Committed:
        """Append the commits that are accepted; return a code for each, and what to await.

        They are pending until the transaction's marker. Call `Holds.check_offsets` first, in the
        same step. Refuses as `commit` and as `RunningShard.append_pending`; and, if the detection
        of conflicts is switched on, as `pending_acks.check_conflicts`. `prepared`: as in `commit`.
        """
        group_id = committer.group_id
        accepted, encoded = prepared or (self._acceptable(group_id, commits), None)
        check_group_id(group_id)
        shard = self._shards.of(group_id)
        self._shards.check_count(group_id, shard.state)
        check_committer(
            shard.state,
            committer,
            accepted.records,
            transactional=True,
            knows_group_not_found=knows_group_not_found,
        )
        if self._config.transaction_offset_conflict_detection_enable:
            keys = (record.key for record in accepted.records)
            check_conflicts(shard.state.offsets.pending, producer_id, producer_epoch, keys)
        now_ms = self._clock.steady_ms()
        try:
            end_offset = shard.append_pending(
                accepted.records, producer_id, producer_epoch, now_ms, encoded=encoded
            )
        except KafkaError as refusal:
            raise _of_commit(refusal) from None
        return Committed(accepted.answer, shard.log, end_offset)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise unless the sender may read the offsets of a consumer group.

        Raises UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.
        """
        check_fetch(self._shards.of(group_id).state, group_id, member_id, member_epoch)

    async def fetch(
        self, group_id: str, asked: Sequence[OffsetQuery], *, require_stable: bool
    ) -> list[LookedUp]:
        """Return what the group has committed for the partitions of each topic, at one moment.

        With `require_stable`, an offset that an open transaction may change has the code
        UNSTABLE_OFFSET_COMMIT. An offset that was committed for a topic of that name but another id
        is left out.
        """
        if (
            len(asked) > _FETCHED_AT_ONCE
            or sum(len(each.partitions) for each in asked) > _FETCHED_AT_ONCE
        ):
            await self._turns.begin()
        return await self._looked_up(group_id, asked, require_stable)

    async def fetch_all(self, group_id: str, *, require_stable: bool) -> dict[str, LookedUp]:
        """Return everything the group has committed, by topic; as `fetch`."""
        await self._turns.begin()
        offsets = self._shards.of(group_id).state.offsets
        asked = [
            OffsetQuery(topic, offsets.partitions_of(group_id, topic))
            for topic in offsets.topics_of(group_id)
        ]
        found = await self._looked_up(group_id, asked, require_stable)
        everything = {}
        async for each, looked_up in self._turns.each(zip(asked, found, strict=True)):
            # If empty, all were committed for a deleted topic of the same name.
            if (of_its_topic := looked_up.of_its_topic()).partitions:
                everything[each.topic] = of_its_topic
        return everything

    async def _looked_up(
        self, group_id: str, asked: Sequence[OffsetQuery], require_stable: bool
    ) -> list[LookedUp]:
        shard = self._shards.of(group_id)
        offsets = shard.state.offsets
        # All topics in one step, since one commit, or one transaction, may be for several. Topics
        # without offsets are left out first: a request may name a hundred thousand of them.
        known = offsets.topics_with_some(group_id, require_stable=require_stable)
        found = [
            offsets.look_up(
                group_id,
                topic,
                partitions,
                # Clients before OffsetFetch v10 name topics, not ids (KIP-848).
                self._id_of(topic) if topic_id == NO_TOPIC_ID else topic_id,
                require_stable=require_stable,
            )
            if topic in known
            else None
            for topic, partitions, topic_id in asked
        ]
        # The log's end now, not that of the offsets' own records: the newest may be a deletion.
        await shard.durable(shard.log.log_end_offset)
        return [
            LookedUp.of_nothing(partitions) if looked_up is None else looked_up
            async for looked_up, (_, partitions, _) in self._turns.each(
                zip(found, asked, strict=True)
            )
        ]

    async def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Delete the offsets of partitions, pending ones too; return a code for each, once durable.

        Refuses as `decide_offset_deletion`, and with INVALID_GROUP_ID.
        """
        check_group_id(group_id)
        shard = self._shards.of(group_id)
        decision = decide_offset_deletion(shard.state, group_id, partitions)
        await shard.durable(shard.append_in_parts(decision.records, self._clock.now_ms()))
        return decision.answer

    def on_topic_deleted(self, name: str, topic_id: UUID) -> None:
        """Delete the offsets that were committed for a deleted topic: its name may come back.

        Few are deleted in this step. The rest follows in later turns. Until then a fetch by name
        may still return an offset, as in Kafka, unless a new topic has taken the name.
        """
        forgetting = self._forget_some(name, topic_id)
        for _ in forgetting:
            if self._turns.is_over():
                # Not awaited: offsets that are left, even by a crash, name the old topic's id.
                self._tasks.spawn(self._forget_rest(forgetting))
                return

    async def _forget_rest(self, forgetting: Iterator[None]) -> None:
        await self._turns.give_up()
        async for _ in self._turns.each(forgetting):
            pass

    def _forget_some(self, name: str, topic_id: UUID) -> Iterator[None]:
        """Delete the offsets of the topic piece by piece; yield before each piece."""
        for shard in self._shards:
            is_any_left = True
            while is_any_left:
                yield
                if shard.log.is_gone:
                    break  # The next coordinator deletes the rest.
                is_any_left = self._forget(shard, name, topic_id)

    def _forget(self, shard: RunningGroupShard, name: str, topic_id: UUID) -> bool:
        """Delete some offsets of the topic; return whether there may be more."""
        deletions = shard.state.offsets.deletion_of_topic(name, topic_id)
        records = list(islice(deletions, _DELETED_AT_ONCE))
        shard.append_in_parts(records, self._clock.now_ms())
        return len(records) == _DELETED_AT_ONCE

    def _id_of(self, topic: str) -> UUID:
        found = self._topics.by_name(topic)
        return NO_TOPIC_ID if found is None else found.id


class OffsetsRetention:
    """Deletes unused offsets, every `offsets.retention.check.interval.ms`."""

    def __init__(
        self, shards: GroupShards, clock: Clock, config: BrokerConfig, tasks: Tasks, turns: Turns
    ) -> None:
        self._shards = shards
        self._turns = turns
        self._clock = clock
        self._config = config
        self._tasks = tasks
        self._has_begun = False
        #: (steady time, how far the wall clock was ahead of it) at the start and at checks since.
        #: A later one that is as low replaces those before it, so the first one is the lowest.
        self._ahead: deque[tuple[int, int]] = deque()
        self._cautious_ms(0)

    def begin(self) -> None:
        """Check for the first time after one interval. Further calls change nothing."""
        if not self._has_begun:
            self._has_begun = True
            self._tasks.spawn(self._expire_periodically())

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire_unused()

    async def expire_unused(self) -> None:
        """Delete the offsets that were unused for offsets.retention.minutes, topic by topic."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        now_ms = self._cautious_ms(retention_ms)
        for shard in self._shards:
            for group_id in shard.state.group_ids():
                # A group without offsets is looked at once: it may be due too.
                for topic in shard.state.offsets.topics_of(group_id) or ("",):
                    is_any_left = True
                    while is_any_left:
                        # Most steps take some microseconds: a turn of the loop has many of them.
                        await self._turns.begin()
                        if shard.log.is_gone:
                            break
                        expired = decide_expiry(shard.state, group_id, topic, now_ms, retention_ms)
                        shard.append_in_parts(expired, self._clock.now_ms())
                        is_any_left = len(expired) >= EXPIRED_AT_ONCE

    def _cautious_ms(self, retention_ms: int) -> int:
        """Return the time by the wall clock as it stood at its furthest behind, of late.

        Commits carry the wall clock's time, which outlives the process. A wall clock that is put
        right, or is ahead for a while, must not make them look old. What was committed before the
        last `retention_ms` is old by the steady clock too.
        """
        steady_ms = self._clock.steady_ms()
        ahead_ms = self._clock.now_ms() - steady_ms
        while self._ahead and self._ahead[-1][1] >= ahead_ms:
            self._ahead.pop()
        self._ahead.append((steady_ms, ahead_ms))
        # It stood so until the next check.
        interval_ms = self._config.offsets_retention_check_interval_ms
        while self._ahead[0][0] < steady_ms - retention_ms - interval_ms:
            self._ahead.popleft()
        return steady_ms + self._ahead[0][1]


def _of_commit(refusal: KafkaError) -> KafkaError:
    """Return the refusal of an append as OffsetCommit names it."""
    # OffsetCommit has a code of its own for a request that makes too large a batch.
    if refusal.code is ErrorCode.MESSAGE_TOO_LARGE:
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, refusal.detail)
    return refusal
