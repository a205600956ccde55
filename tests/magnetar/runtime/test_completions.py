"""COMPLETE_* of an ended transaction: when it is in the log, and what data waits for it."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.transactions.metadata import State
from magnetar.runtime.completions import Completions
from tests.magnetar.transaction_world import A0, A1, World, refused
from wire.error_code import ErrorCode


@pytest.fixture
async def world() -> World:
    return World()


async def test_an_outcome_is_completed_soon_though_nobody_asks(world: World) -> None:
    identity = await world.begin(A0)
    await world.answered(world.end("tx", identity, commit=True, transaction_version=2))
    assert world.state() is State.PREPARE_COMMIT and world.stable(A0)
    async with asyncio.timeout(30):
        while world.state() is not State.COMPLETE_COMMIT:
            await asyncio.sleep(0.005)


async def synced(world: World, topic: str, *, steps: int = 4) -> None:
    """Let the disk sync the logs of `topic`, and no others."""
    for _ in range(steps):
        for partition, executor in world.executors.items():
            if partition.topic == topic and executor.pending:
                executor.step()
        await asyncio.sleep(0)


async def test_an_add_waits_until_the_end_before_it_is_durable(world: World) -> None:
    identity = await world.begin(A0)
    await world.answered(world.end("tx", identity, commit=True))
    assert world.state() is State.COMPLETE_COMMIT
    adding = asyncio.ensure_future(world.coordinator.holds.add_partitions("tx", identity, {A0, A1}))
    await asyncio.sleep(0)
    assert world.state() is State.ONGOING and not adding.done()
    for add_data in (
        lambda: world.produce(identity, A1),
        lambda: world.coordinator.holds.hold("tx", *identity, {A1}),
    ):
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            add_data()
    await synced(world, "__transaction_state")
    assert adding.done()
    world.produce(identity, A1)


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_a_restart_would_commit_data_that_went_before_the_end_before_it(
    is_waited_for: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why an add waits: the last that the log says is PREPARE_COMMIT, of the same epoch."""
    if not is_waited_for:
        monkeypatch.setattr(Completions, "note", lambda *_: None)
    identity = await world.begin(A0)
    await world.answered(world.end("tx", identity, commit=True))
    adding = asyncio.ensure_future(world.coordinator.holds.add_partitions("tx", identity, {A0}))
    await asyncio.sleep(0)
    if is_waited_for:
        await synced(world, "__transaction_state")
    assert adding.done()
    world.produce(identity, A0, sequence=1)
    await synced(world, "a")
    await world.restart()
    if is_waited_for:
        assert world.markers(A0) == [("COMMIT", 0)]
        assert not world.stable(A0)
    else:
        assert world.markers(A0) == [("COMMIT", 0), ("COMMIT", 0)]
