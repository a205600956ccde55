"""The sweep at work in a whole broker: each of its branches, on data that outlived the record of
its coordinator, and a crash after it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey
from coordinator.transactions.healing import Remedy
from coordinator.transactions.metadata import ProducerIdentity, State
from logstore.disk.durability import Durability
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.runtime.group_offsets import OffsetQuery
from tests.logstore.partitions import batch_of
from tests.magnetar.committing import durably
from tests.simulation.simulated_broker import HEALING_INTERVAL_MS, World
from tests.simulation.story import A0, A1, B0, TIMEOUT_MS, begin, end, init, tell, values, write


async def swept(world: World) -> dict[Remedy, int]:
    """Wait for the next periodic sweep; return what it did, which a crash then takes nothing of."""
    before = world.broker.healing.counts.copy()
    await asyncio.sleep(2 * HEALING_INTERVAL_MS / 1000)
    done = dict(world.broker.healing.counts - before)
    await world.crash()
    return done


def test_the_current_transaction_is_left_alone() -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0)
        assert await swept(world) == {}
        await end(world, identity, commit=True)
        assert values(world, A0) == ["held"]

    tell(story)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_data_whose_add_was_lost_is_adopted_and_ends_with_its_transaction(
    commit: bool, begun: bool
) -> None:
    async def story(world: World) -> None:
        identity = await (begin(world, A0) if begun else init(world))
        await write(world, identity, A1, "orphan")
        assert await swept(world) == {Remedy.ADOPT: 1}
        await end(world, identity, commit=commit)
        assert values(world, A1) == (["orphan"] if commit else [])

    tell(story)


def test_a_retried_batch_of_adopted_data_is_a_duplicate_and_committed_once() -> None:
    async def story(world: World) -> None:
        identity = await init(world)
        await write(world, identity, A1, "orphan")
        await swept(world)
        await write(world, identity, A1, "orphan")
        await end(world, identity, commit=True)
        assert values(world, A1) == ["orphan"]

    tell(story)


def test_adopted_data_that_nobody_ends_is_ended_by_the_timeout() -> None:
    async def story(world: World) -> None:
        await write(world, await init(world), A1, "orphan")
        assert await swept(world) == {Remedy.ADOPT: 1}
        await asyncio.sleep(TIMEOUT_MS / 1000)
        assert values(world, A1) == []

    tell(story)


@pytest.mark.parametrize("commit", [True, False])
def test_data_of_the_transaction_that_ended_last_gets_its_outcome(commit: bool) -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0)
        await end(world, identity, commit=commit, version=2)
        await write(world, identity, A1, "orphan")
        await asyncio.sleep(0.2)  # COMPLETE_* is appended
        done = await swept(world)
        assert done == {Remedy.COMMIT if commit else Remedy.ABORT: 1}
        assert values(world, A1) == (["orphan"] if commit else [])

    tell(story)


def test_data_of_a_fenced_epoch_is_aborted() -> None:
    async def story(world: World) -> None:
        fenced = await init(world)
        await write(world, fenced, A1, "zombie")
        await init(world)
        assert await swept(world) == {Remedy.ABORT: 1}
        assert values(world, A1) == []

    tell(story)


def test_data_of_nobody_is_aborted() -> None:
    async def story(world: World) -> None:
        await write(world, ProducerIdentity(4711, 3), B0, "stray")
        assert await swept(world) == {Remedy.ABORT: 1}
        assert values(world, B0) == []

    tell(story)


def test_markers_of_another_clusters_coordinator_keep_no_transaction_open() -> None:
    """A log was copied here whose coordinator had been elected a thousand times."""

    async def story(world: World) -> None:
        log = world.broker.topics.partition(*B0)
        marker = TransactionMarker(4711, 3, 1000, commit=True)
        log.append_marker(marker, world.broker.clock.now_ms())
        await write(world, ProducerIdentity(4711, 3), B0, "stray")
        assert await swept(world) == {Remedy.ABORT: 1}
        assert values(world, B0) == []

    tell(story)


def test_pending_acks_of_nobody_are_dropped_and_the_offset_is_stable_again() -> None:
    async def story(world: World) -> None:
        groups = world.broker.groups
        await durably(
            groups.offsets.commit_in_transaction(
                Committer(group_id="group"),
                4711,
                3,
                [("in", 0, CommittedOffset(5))],
                knows_group_not_found=True,
            )
        )
        pending = groups.shards.of("group").state.offsets.pending
        assert pending.holds(OffsetKey("group", "in", 0))
        assert await swept(world) == {Remedy.ABORT: 1}
        pending = world.broker.groups.shards.of("group").state.offsets.pending
        assert not pending.holds(OffsetKey("group", "in", 0))
        asked = [OffsetQuery("in", [0])]
        (looked_up,) = await world.broker.groups.offsets.fetch("group", asked, require_stable=True)
        (found,) = looked_up.fetched()
        assert found.offset == -1

    tell(story)


def test_what_is_decided_and_not_durable_yet_is_left_alone() -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0)
        ending = asyncio.create_task(end(world, identity, commit=True))
        await asyncio.sleep(0)
        txn = world.broker.transactions.find("tx")
        assert txn is not None and txn.state is State.COMPLETE_COMMIT
        assert world.broker.topics.partition(*A0).last_stable_offset == 0
        await world.broker.healing.sweep()
        await ending
        assert not world.broker.healing.counts
        assert values(world, A0) == ["held"]

    tell(story)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.PAGE_CACHE])
def test_it_is_done_before_the_first_client_is_served(durability: Durability) -> None:
    async def story(world: World) -> None:
        await write(world, ProducerIdentity(4711, 3), B0, "stray")
        world.random = Random(2)
        await world.end_process()
        world.disk = world.disk.kill(world.random)
        await world.start()
        assert values(world, B0) == []
        assert world.broker.healing.counts == {Remedy.ABORT: 1}

    tell(story, durability)


def test_many_open_transactions_of_nobody_are_healed_in_one_sweep() -> None:
    async def story(world: World) -> None:
        log = world.broker.topics.partition(*B0)
        now_ms = world.broker.clock.now_ms()
        for producer_id in range(10_000, 10_600):
            batch = batch_of(
                b"stray",
                timestamp=now_ms,
                producer_id=producer_id,
                epoch=0,
                sequence=0,
                transactional=True,
            )
            log.append(log.check(batch, now_ms))
        await world.broker.healing.sweep()
        assert not list(log.transactions.open_transactions())
        assert values(world, B0) == []

    tell(story)


def test_what_timed_out_while_the_broker_was_down_is_whole_before_it_is_aborted() -> None:
    """Else its epoch is bumped, the orphan left alone as of a decided transaction, and committed by
    the marker of the one after it."""

    async def story(world: World) -> None:
        identity = await begin(world, A0, A1)
        await write(world, identity, B0, "orphan")
        await world.end_process()
        world.disk = world.disk.crash(world.random)
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        await world.start()
        successor = await begin(world, B0)
        assert successor.producer_epoch > identity.producer_epoch
        await end(world, successor, commit=True)
        assert values(world, B0) == ["held"]

    tell(story)
