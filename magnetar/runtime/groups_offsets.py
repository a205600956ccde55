"""Offsets of groups at work: committed, read, and committed inside transactions.

A commit is answered when its record is durable; a read when everything it rests on is: the log's
end at the moment of reading. So nobody reads an offset that a power loss could take back, nor
misses one whose commit has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from coordinator.groups.consumer.membership import check_fetch
from coordinator.groups.consumer_protocol import CONSUMER, subscribed_topics
from coordinator.groups.offsets.committed import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
)
from coordinator.groups.offsets.pending_acks import check_conflicts
from coordinator.groups.shard import Committer
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.runtime.groups import Groups
    from magnetar.runtime.groups_shard import RunningShard


def check_group_id(group_id: str) -> None:
    """Raise INVALID_GROUP_ID for an empty id: only simple consumers commit under that."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


#: One offset to commit, for (topic, partition).
Commit = tuple[str, int, CommittedOffset]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """What OffsetFetch says of one partition; offset -1: nothing is committed."""

    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


_NOTHING = CommittedOffset(-1)


class GroupOffsetCommits:
    """What groups commit and read; `Groups` owns the shards."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups

    async def commit(
        self, committer: Committer, commits: Sequence[Commit], *, knows_group_not_found: bool
    ) -> list[ErrorCode]:
        """Return a code for each commit, once those accepted are durable.

        OFFSET_METADATA_TOO_LARGE is for one, everything raised is for all of them: what
        `GroupShard.decide_commit` refuses with, INVALID_COMMIT_OFFSET_SIZE, POLICY_VIOLATION.
        """
        shard = self._groups.shard_of(committer.group_id)
        self._groups.refuse_beyond_limit(shard, committer.group_id)
        now_ms = self._broker.clock.steady_ms()
        codes = [self._check_metadata(committed) for _, _, committed in commits]
        records = shard.state.decide_commit(
            committer,
            _accepted(commits, codes),
            now_ms,
            knows_group_not_found=knows_group_not_found,
        )
        try:
            end_offset = shard.append(records, now_ms)
        except KafkaError as refusal:
            raise _of_commit(refusal) from None
        group = shard.state.groups.get(committer.group_id)
        if group is not None:
            self._groups.watch(group, now_ms)
        await shard.log.durable(end_offset)
        return codes

    async def commit_in_transaction(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        commits: Sequence[Commit],
    ) -> list[ErrorCode]:
        """Return a code for each commit, once those accepted are pending, durably.

        Call `broker.transactions.check_offsets` in the same step before. The markers of the
        transaction decide what becomes of them. Refuses as `commit`, with INVALID_PRODUCER_EPOCH,
        and, where that is switched on, as `check_conflicts`.
        """
        check_group_id(committer.group_id)
        shard = self._groups.shard_of(committer.group_id)
        self._groups.refuse_beyond_limit(shard, committer.group_id)
        now_ms = self._broker.clock.steady_ms()
        codes = [self._check_metadata(committed) for _, _, committed in commits]
        records = shard.state.decide_commit(
            committer, _accepted(commits, codes), now_ms, transactional=True
        )
        if self._broker.config.transaction_offset_conflict_detection_enable:
            keys = [record.key for record in records]
            check_conflicts(shard.state.offsets.pending, producer_id, producer_epoch, keys)
        try:
            end_offset = shard.append_pending(records, producer_id, producer_epoch, now_ms)
        except KafkaError as refusal:
            raise _of_commit(refusal) from None
        await shard.log.durable(end_offset)
        return codes

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Return if whoever says this may read the offsets of a consumer group, else raise.

        UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION. Of a classic group anyone may.
        """
        group = self._groups.shard_of(group_id).state.consumer_groups.get(group_id)
        if group is not None:
            check_fetch(group, member_id, member_epoch)

    async def fetch(
        self,
        group_id: str,
        topic: str,
        partitions: Iterable[int],
        *,
        require_stable: bool,
        topic_id: UUID = NO_TOPIC_ID,
    ) -> list[FetchedOffset]:
        """Return what the group has committed for these partitions of a topic.

        UNSTABLE_OFFSET_COMMIT where an open transaction may change it and `require_stable`. What
        was committed for a topic of that name but another id is nothing.
        """
        if topic_id == NO_TOPIC_ID:
            topic_id = self._id_of(topic)
        shard = self._groups.shard_of(group_id)
        found = [
            _fetched(shard, OffsetKey(group_id, topic, index), require_stable, topic_id)
            for index in partitions
        ]
        await shard.log.durable(shard.log.end_offset)
        return found

    async def fetch_all(
        self, group_id: str, *, require_stable: bool
    ) -> dict[str, list[FetchedOffset]]:
        """Return everything the group has committed, by topic; as `fetch`."""
        shard = self._groups.shard_of(group_id)
        found: dict[str, list[FetchedOffset]] = {}
        ids: dict[str, UUID] = {}
        for key, committed in shard.state.offsets.of_group(group_id):
            if key.topic not in ids:
                ids[key.topic] = self._id_of(key.topic)
            if _is_of(committed, ids[key.topic]):
                fetched = _fetched(shard, key, require_stable, ids[key.topic])
                found.setdefault(key.topic, []).append(fetched)
        await shard.log.durable(shard.log.end_offset)
        return found

    async def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Return a code for each (topic, partition), once what was committed for it is gone, and
        what transactions that have not ended would commit.

        What a member reads stays: GROUP_SUBSCRIBED_TO_TOPIC. Refuses with INVALID_GROUP_ID,
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        check_group_id(group_id)
        shard = self._groups.shard_of(group_id)
        offsets = shard.state.offsets
        subscribed = _subscribed_topics(shard, group_id)
        codes = []
        records = []
        for topic, index in partitions:
            if subscribed is None or topic in subscribed:
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            key = OffsetKey(group_id, topic, index)
            if offsets.get(key) is not None or offsets.pending.holds(key):
                records.append(OffsetRecord(key, None))
        now_ms = self._broker.clock.now_ms()
        await shard.log.durable(shard.append_in_parts(records, now_ms))
        return codes

    def _id_of(self, topic: str) -> UUID:
        found = self._broker.topics.by_name(topic)
        return NO_TOPIC_ID if found is None else found.id

    def _check_metadata(self, committed: CommittedOffset) -> ErrorCode:
        """Kafka counts a text's length in UTF-16 units, as Java does."""
        text = committed.metadata
        units = len(text)
        if not text.isascii():
            units += sum(char > "\uffff" for char in text)
        if units > self._broker.config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE


def _accepted(commits: Sequence[Commit], codes: Sequence[ErrorCode]) -> list[Commit]:
    return [commit for commit, code in zip(commits, codes, strict=True) if code is ErrorCode.NONE]


def _subscribed_topics(shard: RunningShard, group_id: str) -> frozenset[str] | None:
    """Return the topics that members of the group read; None where that cannot be known."""
    consumer_group = shard.state.consumer_groups.get(group_id)
    if consumer_group is not None:
        return consumer_group.subscribed_names()
    group = shard.state.find(group_id)
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
    return subscribed_topics(group)


def _of_commit(refusal: KafkaError) -> KafkaError:
    if refusal.code is ErrorCode.MESSAGE_TOO_LARGE:
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, refusal.detail)
    return refusal


def _is_of(committed: CommittedOffset, topic_id: UUID) -> bool:
    """Whether this was committed for the topic, as far as both ids are known.

    A crash between the end of a topic and the deletion of its offsets leaves some behind.
    """
    return topic_id == committed.topic_id or NO_TOPIC_ID in (topic_id, committed.topic_id)


def _fetched(
    shard: RunningShard, key: OffsetKey, require_stable: bool, topic_id: UUID
) -> FetchedOffset:
    offsets = shard.state.offsets
    if require_stable and offsets.pending.holds(key):
        return FetchedOffset(key.partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    committed = offsets.get(key) or _NOTHING
    if not _is_of(committed, topic_id):
        committed = _NOTHING
    return FetchedOffset(
        key.partition, committed.offset, committed.leader_epoch, committed.metadata
    )
