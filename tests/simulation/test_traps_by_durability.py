"""Traps that a restart opens, with fsync (power is lost) and with page-cache (the process ends)."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey
from coordinator.transactions.metadata import ProducerIdentity, State
from logstore.disk.durability import Durability
from magnetar.runtime.group_offsets import OffsetQuery
from tests.magnetar.committing import durably
from tests.simulation.simulated_broker import World
from tests.simulation.story import A0, A1, B0, begin, end, init, tell, values, write
from wire.error_code import ErrorCode
from wire.errors import KafkaError

DURABILITIES = [Durability.FSYNC, Durability.PAGE_CACHE]
both = pytest.mark.parametrize("durability", DURABILITIES, ids=str)
OFFSET = OffsetKey("group", "in", 0)


async def send_offset(world: World, identity: ProducerIdentity, offset: int) -> None:
    groups = world.broker.groups
    await world.broker.transactions.holds.add_offsets("tx", identity, OFFSET.group_id)
    coordinator = world.broker.transactions
    coordinator.holds.check_offsets("tx", *identity, OFFSET.group_id, is_abortable_known=False)
    commits = [("in", 0, CommittedOffset(offset))]
    await durably(
        groups.offsets.commit_in_transaction(
            Committer(group_id=OFFSET.group_id), *identity, commits, knows_group_not_found=True
        )
    )


async def stable_offset(world: World) -> int | ErrorCode:
    (looked_up,) = await world.broker.groups.offsets.fetch(
        OFFSET.group_id, [OffsetQuery("in", [0])], require_stable=True
    )
    (found,) = looked_up.fetched()
    return found.error_code or found.offset


@both
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_have_the_outcome_of_their_transaction_after_a_crash(
    commit: bool, durability: Durability
) -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0)
        await send_offset(world, identity, 7)
        await end(world, identity, commit=commit)
        for _ in range(3):
            await world.crash()
            assert await stable_offset(world) == (7 if commit else -1)
            assert values(world, A0) == (["held"] if commit else [])

    tell(story, durability)


@both
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_pending_over_a_crash_wait_for_the_end_of_their_transaction(
    commit: bool, durability: Durability
) -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0)
        await send_offset(world, identity, 7)
        await world.crash()
        assert await stable_offset(world) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        await end(world, identity, commit=commit)
        assert await stable_offset(world) == (7 if commit else -1)

    tell(story, durability)


@both
def test_a_duplicate_after_a_crash_is_answered_with_its_original_offset(
    durability: Durability,
) -> None:
    async def story(world: World) -> None:
        identity = await init(world)
        offsets = [
            await write(world, identity, A0, f"value {sequence}", sequence) for sequence in range(6)
        ]
        await world.crash()
        for sequence in range(1, 6):
            again = await write(world, identity, A0, f"value {sequence}", sequence)
            assert again == offsets[sequence]
        assert await write(world, identity, A0, "the next", 6) == offsets[-1] + 1

    tell(story, durability)


@both
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_retried_after_a_crash_at_any_moment_has_one_outcome(
    commit: bool, version: int, durability: Durability
) -> None:
    async def story(crash_after_s: float, world: World) -> None:
        identity = await begin(world, A0, A1, B0)
        ending = world.mine(
            asyncio.create_task(end(world, identity, commit=commit, version=version))
        )
        await asyncio.sleep(crash_after_s)
        is_answered = ending.done()
        ending.cancel()
        await world.crash()
        following = await end(world, identity, commit=commit, version=version)
        assert following == (await end(world, identity, commit=commit, version=version))
        assert is_answered or crash_after_s < 0.1
        for partition in (A0, A1, B0):
            assert values(world, partition) == (["held"] if commit else [])

    for crash_after_s in (0, 0.0002, 0.001, 0.004, 0.02, 0.2):
        tell(partial(story, crash_after_s), durability)


@both
@pytest.mark.parametrize("timeout_ms", [100, 900_000])
def test_timeouts_are_exact_to_100_ms(timeout_ms: int, durability: Durability) -> None:
    async def story(world: World) -> None:
        identity = await begin(world, A0, timeout_ms=timeout_ms)
        begun = world.broker.transactions.find("tx")
        assert begun is not None
        left_ms = begun.started_at_ms + timeout_ms - world.broker.clock.now_ms()
        await asyncio.sleep((left_ms - 1) / 1000)
        found = world.broker.transactions.find("tx")
        assert found is not None and found.state is State.ONGOING
        log = world.broker.topics.partition(*A0)
        while log.last_stable_offset < log.log_end_offset:
            await asyncio.sleep(0.001)
        late_ms = world.broker.clock.now_ms() - begun.started_at_ms - timeout_ms
        assert 0 <= late_ms <= 100, f"{late_ms} ms late"
        assert values(world, A0) == []
        with pytest.raises(KafkaError) as refused:
            await end(world, identity, commit=True)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED

    tell(story, durability)


@both
def test_what_timed_out_while_the_broker_was_down_is_aborted_at_its_start(
    durability: Durability,
) -> None:
    async def story(world: World) -> None:
        await begin(world, A0)
        await world.end_process()
        world.loop.now_s += 60
        await world.crash()
        await asyncio.sleep(0.1)
        assert values(world, A0) == []

    tell(story, durability)


@both
def test_a_zombie_writes_nothing_before_and_after_a_crash(durability: Durability) -> None:
    async def story(world: World) -> None:
        zombie = await begin(world, A0)
        successor = await init(world)
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                await write(world, zombie, A0, "zombie", 1)
            assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
            await world.crash()
        await world.broker.transactions.holds.add_partitions("tx", successor, {A0})
        await write(world, successor, A0, "mine")
        await end(world, successor, commit=True)
        assert values(world, A0) == ["mine"]

    tell(story, durability)
