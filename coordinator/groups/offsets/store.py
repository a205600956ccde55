"""The offsets of one shard's groups: a fold over its records and markers, live and in replay.

What is committed is visible here before it is durable: the caller answers a read once the log's end
at the time of the read is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey, OffsetRecord
from coordinator.groups.offsets.pending_acks import PendingAcks, Stored
from wire.error_code import ErrorCode

#: Offsets of this topic never expire: they say how far a writer that may rest for months has come,
#: and no reader lags behind them. Its partitions hold no records.
PROGRESS_TOPIC = "__magnetar_progress"


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """What OffsetFetch says of one partition; offset -1: nothing is committed."""

    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class GroupOffsets:
    """Committed offsets by group, and the pending acks beside them."""

    pending: PendingAcks = field(default_factory=PendingAcks)
    _committed: dict[str, dict[tuple[str, int], Stored]] = field(default_factory=dict)

    # --- the fold

    def on_record(self, record: OffsetRecord, log_offset: int) -> None:
        """Fold a plain commit, or a deletion, at `log_offset`."""
        if record.value is None:
            self._delete(record.key)
        else:
            self._set(record.key, Stored(record.value, log_offset))

    def on_pending(
        self, record: OffsetRecord, log_offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Fold a commit inside a transaction, at `log_offset`."""
        assert record.value is not None, "transactions do not delete offsets"
        stored = Stored(record.value, log_offset)
        self.pending.stage(producer_id, producer_epoch, record.key, stored)

    def on_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Fold the end of a transaction: commit its offsets, but where a newer record is there."""
        decided = self.pending.resolve(producer_id, producer_epoch)
        if not commit:
            return
        for key, stored in decided.items():
            offsets = self._committed.setdefault(key.group_id, {})
            current = offsets.get((key.topic, key.partition))
            # A plain commit after the pending one is the client's later word.
            if current is None or current.log_offset < stored.log_offset:
                offsets[key.topic, key.partition] = stored

    # --- questions

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        stored = self._stored(key)
        return None if stored is None else stored.committed

    def fetched(self, key: OffsetKey, topic_id: UUID, *, require_stable: bool) -> FetchedOffset:
        """Return what OffsetFetch answers for the topic of this id; NO_TOPIC_ID: of any id.

        UNSTABLE_OFFSET_COMMIT with `require_stable` while an open transaction may change the
        offset (KIP-447).
        """
        if require_stable and self.pending.holds(key):
            return FetchedOffset(key.partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = self.get(key)
        if committed is None or not committed.is_of(topic_id):
            return FetchedOffset(key.partition)
        return FetchedOffset(
            key.partition, committed.offset, committed.leader_epoch, committed.metadata
        )

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        """Yield what the group has committed, by topic and partition."""
        offsets = self._committed.get(group_id, {})
        for topic, partition in sorted(offsets):
            yield OffsetKey(group_id, topic, partition), offsets[topic, partition].committed

    @property
    def group_count(self) -> int:
        """How many groups have anything committed."""
        return len(self._committed)

    def groups(self) -> set[str]:
        """Return the groups that have anything committed or pending."""
        return {*self._committed, *(key.group_id for key in self.pending.held_keys())}

    def has_group(self, group_id: str) -> bool:
        return group_id in self._committed or self.pending.holds_any(group_id)

    # --- decisions: the records that delete

    def deletion_of_group(self, group_id: str) -> list[OffsetRecord]:
        keys = {key for key, _ in self.of_group(group_id)}
        keys.update(key for key in self.pending.held_keys() if key.group_id == group_id)
        return [OffsetRecord(key, None) for key in sorted(keys)]

    def deletion_of_topic(self, topic: str) -> list[OffsetRecord]:
        keys = {
            OffsetKey(group_id, *place)
            for group_id, offsets in self._committed.items()
            for place in offsets
            if place[0] == topic
        }
        keys.update(key for key in self.pending.held_keys() if key.topic == topic)
        return [OffsetRecord(key, None) for key in sorted(keys)]

    def deletion_of_expired(
        self, group_id: str, now_ms: int, retention_ms: int, unused_since_ms: int
    ) -> list[OffsetRecord]:
        """Return deletions of offsets unused for `retention_ms`, of a group without members.

        Counted from the commit, or from `unused_since_ms` (when a classic group lost its last
        member; -1: no matter), whichever is later. A client's own retention time (OffsetCommit up
        to v4) counts instead where there is one. An offset with a pending ack stays, and one of
        PROGRESS_TOPIC. Source: KIP-211.
        """
        return [
            OffsetRecord(key, None)
            for key, committed in self.of_group(group_id)
            if key.topic != PROGRESS_TOPIC
            and not self.pending.holds(key)
            and now_ms >= _expiry_ms(committed, retention_ms, unused_since_ms)
        ]

    # ---

    def _stored(self, key: OffsetKey) -> Stored | None:
        return self._committed.get(key.group_id, {}).get((key.topic, key.partition))

    def _set(self, key: OffsetKey, stored: Stored) -> None:
        self._committed.setdefault(key.group_id, {})[key.topic, key.partition] = stored

    def _delete(self, key: OffsetKey) -> None:
        # Else a marker could bring the offset of a deleted topic back.
        self.pending.drop(key)
        offsets = self._committed.get(key.group_id)
        if offsets is None:
            return
        offsets.pop((key.topic, key.partition), None)
        if not offsets:
            del self._committed[key.group_id]


def _expiry_ms(committed: CommittedOffset, retention_ms: int, unused_since_ms: int) -> int:
    if committed.expires_ms >= 0:
        return committed.expires_ms
    return max(committed.committed_ms, unused_since_ms) + retention_ms
