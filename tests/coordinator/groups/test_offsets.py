"""Committed offsets and pending acks of a shard: what commits, what aborts, what a replay sees.

A `Journal` is a shard and its log: every entry is folded live as it is written, and `replayed` is
the shard that the log alone gives.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.committing import acceptable
from coordinator.groups.offsets.committed import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
)
from coordinator.groups.offsets.pending_acks import Stored
from coordinator.groups.offsets.store import PROGRESS_TOPIC, LookedUp
from coordinator.groups.records import decode, encode
from coordinator.groups.shard import GroupShard
from wire.error_code import ErrorCode
from wire.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from wire.internal.versioned import encode_versioned

KEY = OffsetKey("group", "topic", 0)
PRODUCER, EPOCH = 7, 3


class Journal:
    """What a log of `__consumer_offsets` holds, and the shard that lived through it."""

    def __init__(self) -> None:
        self.live = GroupShard(GroupLimits())
        self.entries: list[tuple[str, Any]] = []

    def commit(self, offset: int, key: OffsetKey = KEY) -> None:
        self._write("plain", OffsetRecord(key, CommittedOffset(offset)))

    def delete(self, key: OffsetKey = KEY) -> None:
        self._write("plain", OffsetRecord(key, None))

    def stage(
        self, offset: int, key: OffsetKey = KEY, producer_id: int = PRODUCER, epoch: int = EPOCH
    ) -> None:
        record = OffsetRecord(key, CommittedOffset(offset))
        self._write("pending", (record, producer_id, epoch))

    def end(self, *, commit: bool, producer_id: int = PRODUCER, epoch: int = EPOCH) -> None:
        self._write("marker", (producer_id, epoch, commit))

    def _write(self, kind: str, entry: Any) -> None:
        self.entries.append((kind, entry))
        self._fold(self.live, len(self.entries) - 1, kind, entry)

    @staticmethod
    def _fold(shard: GroupShard, log_offset: int, kind: str, entry: Any) -> None:
        if kind == "plain":
            shard.apply(entry, log_offset)
        elif kind == "pending":
            record, producer_id, epoch = entry
            shard.apply_pending(record, log_offset, producer_id, epoch)
        else:
            producer_id, epoch, commit = entry
            shard.apply_marker(producer_id, epoch, commit=commit)

    def replayed(self) -> GroupShard:
        shard = GroupShard(GroupLimits())
        for log_offset, (kind, entry) in enumerate(self.entries):
            self._fold(shard, log_offset, kind, entry)
        return shard

    def offset(self, key: OffsetKey = KEY) -> int | None:
        """The committed offset, the same live and replayed."""
        live, replayed = self.live.offsets.get(key), self.replayed().offsets.get(key)
        assert live == replayed
        return None if live is None else live.offset

    def pending(self, key: OffsetKey = KEY) -> bool:
        live = self.live.offsets.pending.holds(key)
        assert live == self.replayed().offsets.pending.holds(key)
        return live


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_offsets_of_a_transaction_are_visible_with_its_marker_also_after_a_reload(
    journal: Journal,
) -> None:
    journal.commit(1)
    journal.stage(5)
    assert (journal.offset(), journal.pending()) == (1, True)
    journal.end(commit=True)
    assert (journal.offset(), journal.pending()) == (5, False)


def test_offsets_of_an_aborted_transaction_never_are(journal: Journal) -> None:
    journal.commit(1)
    journal.stage(5)
    journal.end(commit=False)
    assert (journal.offset(), journal.pending()) == (1, False)


def test_an_open_transaction_is_open_after_a_reload_and_can_still_commit(journal: Journal) -> None:
    journal.stage(5)
    reloaded = journal.replayed()
    assert reloaded.offsets.get(KEY) is None
    assert reloaded.offsets.pending.open_transactions() == {(PRODUCER, EPOCH): 1}
    reloaded.apply_marker(PRODUCER, EPOCH, commit=True)
    committed = reloaded.offsets.get(KEY)
    assert committed is not None and committed.offset == 5


def test_a_newer_plain_commit_outlives_the_marker(journal: Journal) -> None:
    journal.stage(5)
    journal.commit(9)
    journal.end(commit=True)
    assert journal.offset() == 9


def test_an_older_plain_commit_does_not(journal: Journal) -> None:
    journal.commit(9)
    journal.stage(5)
    journal.end(commit=True)
    assert journal.offset() == 5


def test_the_last_staged_of_a_partition_counts(journal: Journal) -> None:
    journal.stage(5)
    journal.stage(6)
    journal.end(commit=True)
    assert journal.offset() == 6


def test_of_two_transactions_the_later_record_wins_whichever_ends_first(journal: Journal) -> None:
    journal.stage(5, producer_id=1)
    journal.stage(6, producer_id=2)
    journal.end(commit=True, producer_id=2)
    assert journal.pending()
    journal.end(commit=True, producer_id=1)
    assert (journal.offset(), journal.pending()) == (6, False)


def test_a_marker_touches_its_own_producer_only(journal: Journal) -> None:
    journal.stage(5)
    journal.end(commit=True, producer_id=PRODUCER + 1)
    assert (journal.offset(), journal.pending()) == (None, True)


def test_a_delayed_marker_of_an_older_epoch_touches_nothing(journal: Journal) -> None:
    journal.stage(5)
    journal.end(commit=True, epoch=EPOCH - 1)
    assert (journal.offset(), journal.pending()) == (None, True)


def test_a_marker_with_a_bumped_epoch_ends_the_data_before_it(journal: Journal) -> None:
    journal.stage(5)
    journal.end(commit=True, epoch=EPOCH + 1)
    assert journal.offset() == 5


def test_a_marker_commits_nothing_that_outlived_its_own_marker(journal: Journal) -> None:
    other = OffsetKey("group", "topic", 1)
    journal.stage(5, key=other, epoch=EPOCH - 2)
    journal.stage(6)
    journal.end(commit=True)
    assert (journal.offset(), journal.offset(other)) == (6, None)
    assert not journal.pending(other)


def test_a_deleted_offset_is_gone_from_transactions_too(journal: Journal) -> None:
    journal.stage(5)
    journal.delete()
    journal.end(commit=True)
    assert (journal.offset(), journal.pending()) == (None, False)


def test_an_offset_staged_after_a_deletion_is_committed(journal: Journal) -> None:
    journal.commit(1)
    journal.delete()
    journal.stage(5)
    journal.end(commit=True)
    assert journal.offset() == 5


def test_every_partition_keeps_its_own_offset(journal: Journal) -> None:
    keys = [OffsetKey("group", topic, index) for topic in "ab" for index in range(3)]
    for offset, key in enumerate(keys):
        journal.commit(offset, key)
    assert [journal.offset(key) for key in keys] == list(range(6))
    assert [key for key, _ in journal.live.offsets.of_group("group")] == keys


def test_a_deleted_topic_takes_committed_and_pending_offsets_of_every_group(
    journal: Journal,
) -> None:
    kept = OffsetKey("group", "other", 0)
    pending = OffsetKey("pending", "topic", 4)
    journal.commit(1)
    journal.commit(2, OffsetKey("another", "topic", 3))
    journal.commit(3, kept)
    journal.stage(4, pending)
    for record in list(journal.live.offsets.deletion_of_topic("topic", NO_TOPIC_ID)):
        journal.delete(record.key)
    journal.end(commit=True)
    assert journal.live.offsets.groups() == ["group"]
    assert (journal.offset(kept), journal.offset(pending)) == (3, None)


def test_a_deleted_topic_leaves_what_is_committed_for_a_later_one_of_its_name(
    journal: Journal,
) -> None:
    former, later = UUID(int=1), UUID(int=2)
    mixed, held = OffsetKey("group", "topic", 7), OffsetKey("group", "topic", 8)
    offsets = journal.live.offsets
    offsets.on_record(OffsetRecord(mixed, CommittedOffset(1, topic_id=later)), 0)
    offsets.on_record(OffsetRecord(held, CommittedOffset(2, topic_id=former)), 1)
    offsets.on_pending(OffsetRecord(held, CommittedOffset(3, topic_id=later)), 2, 5, 0)
    assert list(offsets.deletion_of_topic("topic", former)) == []
    assert [each.key for each in offsets.deletion_of_topic("topic", later)] == [mixed]
    offsets.on_marker(5, 0, commit=False)
    assert [each.key for each in offsets.deletion_of_topic("topic", former)] == [held]


@pytest.mark.parametrize(
    ("committed", "unused_since_ms", "expired"),
    [
        (CommittedOffset(1, committed_ms=0), -1, True),
        (CommittedOffset(1, committed_ms=1), -1, False),
        (CommittedOffset(1, committed_ms=0), 1, False),
        (CommittedOffset(1, committed_ms=0, expires_ms=1_001), -1, False),
        (CommittedOffset(1, committed_ms=900, expires_ms=1_000), 900, True),
    ],
)
def test_offsets_expire_when_nobody_used_them_for_long(
    committed: CommittedOffset, unused_since_ms: int, expired: bool
) -> None:
    shard = GroupShard(GroupLimits())
    shard.apply(OffsetRecord(KEY, committed), 0)
    found = shard.offsets.deletion_of_expired("group", "topic", 1_000, 1_000, unused_since_ms)
    assert [record.key for record in found] == ([KEY] if expired else [])


def test_an_offset_with_a_pending_ack_does_not_expire(journal: Journal) -> None:
    journal.commit(1)
    journal.stage(5)
    assert not list(journal.live.offsets.deletion_of_expired("group", "topic", 10**12, 1, -1))


def test_a_record_of_progress_never_expires(journal: Journal) -> None:
    journal.commit(1, OffsetKey("group", PROGRESS_TOPIC, 0))
    offsets = journal.live.offsets
    assert not list(offsets.deletion_of_expired("group", PROGRESS_TOPIC, 10**15, 1, -1))


def test_a_commit_is_one_record_for_each_partition() -> None:
    commits = [("topic", index, CommittedOffset(index)) for index in range(3)]
    records = acceptable("group", commits, 100).records
    assert [record.key for record in records] == [OffsetKey("group", "topic", i) for i in range(3)]


_KEYS = st.sampled_from([OffsetKey("group", "topic", i) for i in range(2)])
_ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 99), _KEYS),
        st.tuples(st.just("stage"), st.integers(0, 99), _KEYS, st.sampled_from([1, 2])),
        st.tuples(st.just("end"), st.booleans(), st.sampled_from([1, 2])),
        st.tuples(st.just("delete"), _KEYS),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(_ENTRIES)
def test_live_is_replayed_and_follows_a_model_that_only_reads_the_log(
    entries: list[tuple[Any, ...]],
) -> None:
    journal = Journal()
    epochs = {1: 0, 2: 0}
    for entry in entries:
        if entry[0] == "commit":
            journal.commit(entry[1], entry[2])
        elif entry[0] == "stage":
            journal.stage(entry[1], entry[2], entry[3], epochs[entry[3]])
        elif entry[0] == "delete":
            journal.delete(entry[1])
        else:
            journal.end(commit=entry[1], producer_id=entry[2], epoch=epochs[entry[2]])
            epochs[entry[2]] += 1
    for key in (OffsetKey("group", "topic", 0), OffsetKey("group", "topic", 1)):
        assert (journal.offset(key), journal.pending(key)) == _model(journal.entries, key)


def _model(entries: list[tuple[str, Any]], key: OffsetKey) -> tuple[int | None, bool]:
    """The offset of the last record that counts: plain, or of a transaction that committed."""
    deleted = max((i for i, (k, e) in enumerate(entries) if _is_deletion(k, e, key)), default=-1)
    found, pending = None, False
    for position, (kind, entry) in enumerate(entries):
        if position <= deleted:
            continue
        if kind == "plain" and entry.key == key:
            found = entry.value.offset
        elif kind == "pending" and entry[0].key == key:
            ends = [e for k, e in entries[position:] if k == "marker" and e[0] == entry[1]]
            pending |= not ends
            if ends and ends[0][2]:
                found = entry[0].value.offset
    return found, pending


def _is_deletion(kind: str, entry: Any, key: OffsetKey) -> bool:
    return kind == "plain" and entry.key == key and entry.value is None


def test_a_deletion_in_a_transaction_of_a_foreign_log_deletes(journal: Journal) -> None:
    journal.commit(1)
    shard = journal.live
    shard.apply_pending(OffsetRecord(KEY, None), 10, PRODUCER, EPOCH)
    assert shard.offsets.get(KEY) is None


def test_an_offset_of_a_later_topic_stays_pending_beside_one_of_the_former() -> None:
    """The rest of what a deleted topic leaves is forgotten in turns: its name may be taken."""
    former, later = UUID(int=1), UUID(int=2)
    offsets = GroupShard(GroupLimits()).offsets
    for log_offset, (producer_id, topic_id) in enumerate(((5, former), (6, later))):
        record = OffsetRecord(KEY, CommittedOffset(log_offset, topic_id=topic_id))
        offsets.on_pending(record, log_offset, producer_id, 0)
    for deletion in list(offsets.deletion_of_topic("topic", former)):
        offsets.on_record(deletion, 2)
    for producer_id in (6, 5):
        offsets.on_marker(producer_id, 0, commit=True)
    committed = offsets.get(KEY)
    assert committed is not None and committed.topic_id == later


def test_offsets_may_be_deleted_while_a_group_is_gone_through(journal: Journal) -> None:
    """The metrics of many groups are gathered in turns."""
    later = OffsetKey("group", "topic", 1)
    journal.commit(5)
    journal.commit(6, later)
    found = journal.live.offsets.of_group("group")
    assert next(found)[0] == KEY
    journal.delete(later)
    assert [key for key, _ in found] == [later]
    assert journal.offset(later) is None


def test_only_the_offsets_of_a_topic_itself_are_told_of_all_that_its_name_had() -> None:
    """Looked at later than found: in the step that finds 100,000 it took 20 ms."""
    own, former = UUID(int=1), UUID(int=2)
    stored = [
        Stored(CommittedOffset(partition, topic_id=topic_id), 0)
        for partition, topic_id in enumerate((own, former, NO_TOPIC_ID))
    ]
    found = LookedUp((0, 1, 2, 3), [*stored, None], (False, True, True, True), own)
    kept = found.of_its_topic()
    assert (*kept.partitions,) == (0, 2)
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert [each.error_code for each in kept.fetched()] == [ErrorCode.NONE, unstable]
    assert kept.of_its_topic() is kept


@pytest.mark.parametrize("partition", [0, 1, 2**31 - 1, -1])
@pytest.mark.parametrize("topic_id", [NO_TOPIC_ID, UUID(int=1), UUID(int=2**128 - 1)])
@pytest.mark.parametrize("metadata", ["", "m", "\u00e9" * 100])
def test_an_offset_is_written_as_its_declarations_say(
    partition: int, topic_id: UUID, metadata: str
) -> None:
    """It is packed by hand: a request may commit ten thousand."""
    committed = CommittedOffset(5, 6, metadata.encode(), 7, -1, topic_id)
    record = OffsetRecord(OffsetKey("gr\u00fcppe", "topic", partition), committed)
    key, value = encode(record)
    place = OffsetCommitKey(group="gr\u00fcppe", topic="topic", partition=partition)
    assert key == b"\0\1" + place.encode(0)
    declared = OffsetCommitValue(
        offset=5, leader_epoch=6, metadata=metadata, commit_timestamp=7, topic_id=topic_id
    )
    assert value == encode_versioned(declared, 4)
    assert decode(key, value) == record
