"""Conflict detection: whose offsets are refused, and what a client of each version is told."""

from __future__ import annotations

import time
from functools import partial

import pytest

from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.deletion import decide_offset_deletion
from coordinator.groups.offsets.committed import (
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
)
from coordinator.groups.offsets.pending_acks import (
    PendingAcks,
    Stored,
    check_conflicts,
    conflict_code,
)
from coordinator.groups.offsets.store import GroupOffsets
from coordinator.groups.shard import GroupShard
from tests.coordinator.groups.calls import calls_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError

KEY, OTHER_KEY = OffsetKey("group", "topic", 0), OffsetKey("group", "topic", 1)
OTHER_GROUP = OffsetKey("other group", "topic", 0)
FIRST, SECOND = (7, 3), (8, 0)


def staged(*holders: tuple[int, int], key: OffsetKey = KEY) -> PendingAcks:
    pending = PendingAcks()
    for offset, (producer_id, epoch) in enumerate(holders):
        pending.stage(producer_id, epoch, key, Stored(CommittedOffset(offset), offset))
    return pending


def test_an_offset_that_nobody_holds_is_free() -> None:
    pending = staged(FIRST)
    check_conflicts(pending, *SECOND, [OTHER_KEY, OTHER_GROUP])
    check_conflicts(PendingAcks(), *SECOND, [KEY])


def test_a_transaction_may_commit_the_same_offset_again() -> None:
    check_conflicts(staged(FIRST), *FIRST, [OTHER_KEY, KEY])


@pytest.mark.parametrize("second", [SECOND, (FIRST[0], FIRST[1] + 1)])
def test_the_second_of_two_transactions_is_refused_and_told_who_is_first(
    second: tuple[int, int],
) -> None:
    pending = staged(FIRST)
    with pytest.raises(KafkaError, match="topic-0 of group group .* producer 7 at epoch 3") as told:
        check_conflicts(pending, *second, [OTHER_KEY, KEY])
    assert told.value.code is ErrorCode.TRANSACTION_ABORTABLE
    pending.resolve(*FIRST)
    check_conflicts(pending, *second, [KEY])


def test_of_two_that_share_an_offset_already_neither_goes_on() -> None:
    """Conflict detection was switched on while both were open."""
    pending = staged(FIRST, SECOND)
    for mine, other in ((FIRST, SECOND), (SECOND, FIRST)):
        assert pending.held_by_another(KEY, *mine) == other
    pending.resolve(*FIRST)
    assert pending.held_by_another(KEY, *SECOND) is None


@pytest.mark.parametrize(
    ("code", "is_known", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, True, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, False, ErrorCode.ILLEGAL_GENERATION),
        (ErrorCode.INVALID_TXN_STATE, False, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_older_clients_are_told_what_makes_them_abort(
    code: ErrorCode, is_known: bool, told: ErrorCode
) -> None:
    assert conflict_code(code, is_abortable_known=is_known) is told


def test_a_deleted_offset_is_dropped_from_each_transaction_that_holds_it_and_no_other() -> None:
    pending = staged(FIRST, SECOND, (FIRST[0], FIRST[1] + 1))
    pending.stage(*FIRST, OTHER_KEY, Stored(CommittedOffset(9), 9))
    pending.drop(KEY)
    assert not pending.holds(KEY)
    assert pending.open_transactions() == {FIRST: 1}
    assert pending.resolve(*FIRST) == {
        OTHER_KEY[:2]: {OTHER_KEY.partition: Stored(CommittedOffset(9), 9)}
    }
    assert not pending.holds_any(OTHER_KEY.group_id)


def test_a_group_of_thousands_of_open_transactions_is_deleted_in_one_short_step() -> None:
    """Each of its offsets was looked for in all transactions: 4,000 held up the broker for 4 s."""
    offsets = GroupOffsets()
    for number in range(4_000):
        record = OffsetRecord(OffsetKey("group", "topic", number), CommittedOffset(1))
        offsets.on_pending(record, number, number, 0)
    began_s = time.process_time()
    for deletion in offsets.deletion_of_group("group"):
        offsets.on_record(deletion, 4_000)
    # 0.07 s; a collection of garbage in a process of many tests takes longer than that.
    assert time.process_time() - began_s < 2
    assert not offsets.has_group("group")


def test_a_transaction_with_many_offsets_ends_without_a_look_at_each() -> None:
    """To go through 180,000 of them, each with tables of its own, held up the broker for 0.5 s."""
    offsets, partitions = GroupOffsets(), range(1_000)
    for log_offset in partitions:
        record = OffsetRecord(OffsetKey("group", "topic", log_offset), CommittedOffset(log_offset))
        offsets.on_pending(record, log_offset, *FIRST)
    calls = calls_of(lambda: offsets.on_marker(*FIRST, commit=True))
    assert calls < 20
    assert offsets.partitions_of("group", "topic") == [*partitions]
    for log_offset in partitions:
        record = OffsetRecord(OffsetKey("group", "topic", log_offset), CommittedOffset(-log_offset))
        offsets.on_pending(record, 1_000 + log_offset, *FIRST)
    assert calls_of(lambda: offsets.on_marker(*FIRST, commit=True)) < 20
    assert offsets.get(OffsetKey("group", "topic", 7)) == CommittedOffset(-7)


def test_a_transaction_that_ends_leaves_what_another_holds_of_the_same_topic() -> None:
    pending = staged(FIRST, SECOND)
    pending.stage(*FIRST, OTHER_KEY, Stored(CommittedOffset(9), 9))
    pending.resolve(*FIRST)
    assert pending.holds(KEY)
    assert not pending.holds(OTHER_KEY)
    assert pending.held_by_another(KEY, *FIRST) == SECOND
    pending.resolve(*SECOND)
    assert not pending.holds_any(KEY.group_id)
    assert not pending.topics


def test_the_deletion_of_many_offsets_is_decided_without_a_call_for_each() -> None:
    shard, partitions = GroupShard(GroupLimits()), range(1_000)
    for number in partitions:
        record = OffsetRecord(OffsetKey("group", "topic", number), CommittedOffset(1))
        shard.offsets.on_record(record, number)
    shard.offsets.on_pending(
        OffsetRecord(OffsetKey("group", "topic", 1_000), CommittedOffset(1)), 1_000, *FIRST
    )
    named = [("topic", number) for number in range(1_002)]
    assert calls_of(lambda: decide_offset_deletion(shard, "group", named)) < 50
    deletion = decide_offset_deletion(shard, "group", named)
    assert [each.key.partition for each in deletion.records] == [*partitions, 1_000]
    assert deletion.answer == [ErrorCode.NONE] * 1_002


class CountedId(int):
    """A producer id whose comparisons are calls."""

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_a_transaction_that_ends_looks_at_no_other_that_holds_the_same_offset() -> None:
    """With a thousand others, of a hundred offsets, that took 25 ms."""
    pending = PendingAcks()
    producer_ids = [CountedId(number) for number in range(1_000)]
    for producer_id in producer_ids:
        pending.stage(producer_id, 0, KEY, Stored(CommittedOffset(1), 1))
    for producer_id in producer_ids[:-1]:
        assert calls_of(partial(pending.resolve, producer_id, 0)) < 20
        assert pending.holds(KEY)
    pending.resolve(producer_ids[-1], 0)
    assert not pending.holds_any(KEY.group_id)
