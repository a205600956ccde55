"""Offsets in transactions, through reloads and crashes of both coordinators.

Named after an anomaly of others: committed transactional offsets vanished when the group
coordinator reloaded, because its replay did not see the markers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.offsets.committed import NO_TOPIC_ID
from logstore.disk.files import StorageFailure
from magnetar.runtime.group_offsets import OffsetQuery
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.logstore.reading import records_from
from tests.magnetar.groups_world import GROUP, GroupsWorld
from tests.magnetar.transaction_world import TIMEOUT_MS, refused
from tests.soak import SOAK
from wire.error_code import ErrorCode


@pytest.fixture
async def world() -> GroupsWorld:
    return GroupsWorld()


@pytest.mark.parametrize("reload", [False, True])
async def test_offsets_of_a_committed_transaction_are_there(
    world: GroupsWorld, reload: bool
) -> None:
    await world.until(world.commit(1))
    identity = await world.begin_with_offsets(5)
    await world.until(world.end("tx", identity, commit=True))
    if reload:
        await world.restart()
    assert await world.offset() == 5


@pytest.mark.parametrize("reload", [False, True])
async def test_offsets_of_an_aborted_transaction_are_not(world: GroupsWorld, reload: bool) -> None:
    await world.until(world.commit(1))
    identity = await world.begin_with_offsets(5)
    await world.until(world.end("tx", identity, commit=False))
    if reload:
        await world.restart()
    assert await world.offset() == 1


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_of_an_open_transaction_are_unstable_until_it_ends(
    world: GroupsWorld, reload: bool, commit: bool
) -> None:
    await world.until(world.commit(1))
    identity = await world.begin_with_offsets(5)
    if reload:
        await world.restart()
    found = await world.fetched()
    assert {(f.offset, f.error_code) for f in found} == {(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)}
    unstable = await world.fetched(require_stable=False)
    assert {(f.offset, f.error_code) for f in unstable} == {(1, ErrorCode.NONE)}
    await world.until(world.end("tx", identity, commit=commit))
    assert await world.offset() == (5 if commit else 1)


async def test_after_a_restart_the_successor_of_a_producer_drops_its_pending_offsets(
    world: GroupsWorld,
) -> None:
    """Not before: until then the offset is unstable, and the next member waits for it."""
    await world.until(world.commit(1))
    lost = await world.begin_with_offsets(5)
    await world.restart()
    found = await world.fetched()
    assert {each.error_code for each in found} == {ErrorCode.UNSTABLE_OFFSET_COMMIT}
    await world.init()
    assert await world.offset() == 1
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        await world.stage(lost, 6)
    await world.restart()
    assert await world.offset() == 1


async def test_a_transaction_nobody_ends_is_ended_by_its_timeout(world: GroupsWorld) -> None:
    await world.begin_with_offsets(5)
    await world.restart()
    world.now_ms += TIMEOUT_MS
    world.coordinator.expire_due()
    await world.settle()
    assert await world.offset() == -1


async def test_the_batch_of_offsets_is_transactional_and_without_sequence(
    world: GroupsWorld,
) -> None:
    identity = await world.begin_with_offsets(5)
    log = world.logs[world.offsets_partition]
    ((header, _), *_) = records_from(log.reader, 0)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == identity
    assert (header.base_sequence, header.record_count) == (-1, 2)
    assert log.last_stable_offset == 0


async def test_offsets_outside_the_transaction_are_refused(world: GroupsWorld) -> None:
    identity = await world.init()
    world.ensure_internal(CONSUMER_OFFSETS)
    with refused(ErrorCode.TRANSACTION_ABORTABLE):
        await world.stage(identity, 5)
    assert await world.offset() == -1


async def test_offsets_of_a_fenced_producer_are_refused(world: GroupsWorld) -> None:
    fenced = await world.begin_with_offsets(5)
    await world.init()
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        await world.stage(fenced, 6)
    assert await world.offset() == -1


async def test_a_commit_that_returned_is_visible_to_a_fetch_at_once(world: GroupsWorld) -> None:
    identity = await world.begin_with_offsets(5)
    await world.answered(world.end("tx", identity, commit=True))
    asked = [OffsetQuery("a", (0, 1))]
    (found,) = await asyncio.wait_for(
        world.groups.offsets.fetch(GROUP, asked, require_stable=True), 1
    )
    assert [fetched.offset for fetched in found.fetched()] == [5, 5]
    await world.settle()


@pytest.mark.parametrize("committed", [False, True])
async def test_an_offset_that_was_deleted_does_not_come_back_with_its_transaction(
    world: GroupsWorld, committed: bool
) -> None:
    if committed:
        await world.until(world.commit(1))
    identity = await world.begin_with_offsets(5)
    codes = await world.until(world.groups.offsets.delete(GROUP, [("a", 0), ("a", 1)]))
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    await world.until(world.end("tx", identity, commit=True))
    assert await world.offset() == -1
    await world.restart()
    assert await world.offset() == -1


async def test_offsets_go_with_a_deleted_topic_also_from_transactions(world: GroupsWorld) -> None:
    identity = await world.begin_with_offsets(5)
    world.groups.offsets.on_topic_deleted("a", NO_TOPIC_ID)
    await world.until(world.end("tx", identity, commit=True))
    assert await world.offset() == -1
    await world.restart()
    assert await world.offset() == -1


async def story(world: GroupsWorld, answered: list[int]) -> None:
    """Three commits, of which the second is in a transaction; then one that is aborted."""
    await world.commit(1)
    answered.append(1)
    identity = await world.coordinator.init_producer_id("tx", TIMEOUT_MS, None)
    for offset, commit in ((2, True), (9, False)):
        await world.coordinator.holds.add_offsets("tx", identity, GROUP)
        await world.stage(identity, offset)
        await world.end("tx", identity, commit=commit)
        if commit:
            answered.append(offset)
    await world.commit(3)
    answered.append(3)


async def crash(rounds: int, chosen: list[int]) -> None:
    """Crash after `rounds` in which all logs sync and some in which only the `chosen` do."""
    world, answered = GroupsWorld(), list[int]()
    world.ensure_internal(TRANSACTION_STATE)
    world.ensure_internal(CONSUMER_OFFSETS)
    client = asyncio.ensure_future(story(world, answered))
    executors = [world.executors[one] for one in sorted(world.logs)]
    for subset in [-1] * rounds + chosen:
        for number, executor in enumerate(executors):
            if subset >> number & 1 and executor.pending:
                executor.step()
        await asyncio.sleep(0)
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    await world.restart()
    world.adopt_if_lost(world.offsets_partition)
    world.now_ms += TIMEOUT_MS
    world.coordinator.expire_due()
    await world.settle()
    assert world.failures == []
    found = await world.offset()
    assert found >= max(answered, default=-1), f"lost {answered}, found {found}"
    assert found in (-1, 1, 2, 3), f"found {found}, which was aborted"


@settings(max_examples=150 * SOAK, deadline=None)
@given(st.integers(0, 40), st.lists(st.integers(0, 63), max_size=12))
def test_no_crash_loses_a_commit_or_shows_an_aborted_one(rounds: int, chosen: list[int]) -> None:
    asyncio.run(crash(rounds, chosen))


@pytest.mark.parametrize("appends", range(4))
async def test_a_disk_that_fails_at_any_write_leaves_nothing_half_done(
    world: GroupsWorld, appends: int
) -> None:
    await world.until(world.commit(1))
    world.ledgers[world.offsets_partition].appends_left = appends
    outcome = None
    with suppress(StorageFailure):
        identity = await world.begin_with_offsets(5)
        await asyncio.wait_for(world.until(world.end("tx", identity, commit=True)), 1)
        outcome = await world.offset()
    assert outcome in (None, 5)
    await world.restart()
    world.now_ms += TIMEOUT_MS
    world.coordinator.expire_due()
    await world.settle()
    assert await world.offset() in ((5,) if outcome else (1, 5))
