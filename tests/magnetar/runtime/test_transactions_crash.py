"""Crashes of the transaction coordinator: after any order of syncs, and at any write that fails."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transactions.metadata import State, TopicPartition
from magnetar.runtime import commit as commits
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.magnetar.transaction_world import A0, A1, TIMEOUT_MS, World


@pytest.fixture
async def world() -> World:
    return World()


async def transfer(world: World, answered: list[str]) -> None:
    """One whole story: a transaction over two partitions, committed; a second one, aborted.

    `answered` grows by the outcome whenever an EndTxn is answered.
    """
    identity = await world.coordinator.init_producer_id("tx", TIMEOUT_MS, None)
    for commit in (True, False):
        await world.coordinator.holds.add_partitions("tx", identity, {A0, A1})
        for partition in (A0, A1):
            batch = batch_of(
                b"apple",
                producer_id=identity.producer_id,
                epoch=identity.producer_epoch,
                sequence=0 if commit else 1,
                transactional=True,
            )
            log, end_offset = world.coordinator.holds.check_produce(
                "tx", *identity, *partition, is_abortable_known=True
            )
            appended = world.logs[partition].append(
                world.logs[partition].check(batch, world.now_ms)
            )
            await world.logs[partition].durable(appended.end_offset)
            await log.durable(end_offset)
        await world.end("tx", identity, commit=commit)
        answered.append("COMMIT" if commit else "ABORT")


async def settled_after_crash(world: World, answered: list[str]) -> None:
    """Restart; let the timeout strike; then both partitions must tell the same, true story."""
    await world.restart()
    assert world.failures == []
    for partition in (A0, A1):
        world.adopt_if_lost(partition)
    world.now_ms += TIMEOUT_MS
    world.coordinator.expire_due()
    await world.settle()
    assert all(not one.partitions for one in world.coordinator)
    for partition in (A0, A1):
        assert not list(world.logs[partition].transactions.open_transactions())
        assert world.stable(partition)
    stories = [[kind for kind, _ in world.markers(partition)] for partition in (A0, A1)]
    shorter, longer = sorted(stories, key=len)
    # A marker may be doubled by nothing, and missing only where there is no data to close.
    assert longer[: len(shorter)] == shorter
    assert shorter[: len(answered)] == answered


async def crash(rounds: int, chosen: list[int]) -> bool:
    """Crash in the story, as `World.until_crash` says; returns whether it was at its end."""
    world, answered = World(), list[str]()
    is_over = await world.until_crash(transfer(world, answered), rounds, chosen)
    await settled_after_crash(world, answered)
    return is_over


@pytest.mark.parametrize("subset", range(16))
async def test_a_crash_at_any_moment_ends_in_one_outcome(subset: int) -> None:
    rounds = 0
    while not await crash(rounds, [subset] * 4):
        rounds += 1
    assert rounds > 8


@settings(deadline=None)
@given(st.integers(0, 40), st.lists(st.integers(0, 15), max_size=8))
def test_a_crash_after_any_order_of_syncs_ends_in_one_outcome(
    rounds: int, chosen: list[int]
) -> None:
    asyncio.run(crash(rounds, chosen))


@pytest.mark.parametrize("target", [TopicPartition(TRANSACTION_STATE, 0), A0, A1])
@pytest.mark.parametrize("appends", range(9))
async def test_a_full_disk_at_any_write_is_survived_by_a_restart(
    target: TopicPartition, appends: int, world: World
) -> None:
    answered: list[str] = []
    await world.until_disk_is_full(transfer(world, answered), target, appends)
    await settled_after_crash(world, answered)
    identity = await world.begin(A0, A1)
    await world.until(world.end("tx", identity, commit=True))


async def test_work_found_at_a_restart_skips_what_is_closed_already(world: World) -> None:
    identity = await world.begin(A0, A1)
    asyncio.ensure_future(world.end("tx", identity, commit=True))
    await asyncio.sleep(0)
    state = [one for one in world.logs if one.topic == TRANSACTION_STATE]
    for _ in range(4):
        for partition in (*state, A0):  # the marker in A1 is never synced
            if world.executors[partition].pending:
                world.executors[partition].step()
        await asyncio.sleep(0)
    await world.restart()
    assert world.markers(A0) == world.markers(A1) == [("COMMIT", 0)]
    assert world.state() is State.COMPLETE_COMMIT


async def test_a_start_waits_for_the_markers_however_slow_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Healing comes next, and leaves alone what is decided: data after it would not be adopted."""
    monkeypatch.setattr(commits, "VISIBLE_TIMEOUT_MS", 0)
    identity = await world.begin(A0)
    asyncio.ensure_future(world.end("tx", identity, commit=True))
    await asyncio.sleep(0)
    for partition in [one for one in world.logs if one.topic == TRANSACTION_STATE]:
        world.executors[partition].run()
    await world.crash()

    slow = world.executors.pop(A0)

    async def start() -> State:
        await world.coordinator.start()
        return world.state()

    starting = asyncio.ensure_future(start())
    for _ in range(20):
        world.step()
        await asyncio.sleep(0.001)
    world.executors[A0] = slow
    assert await world.until(starting) is State.COMPLETE_COMMIT
    assert world.markers(A0) == [("COMMIT", 0)]
