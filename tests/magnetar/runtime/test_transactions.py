"""The transaction coordinator at work: what clients may rely on, over real partition logs."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.transactions.metadata import State, TopicPartition
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.runtime import commit as commits
from tests.magnetar.transaction_world import A0, A1, OFFSETS, TIMEOUT_MS, World, refused
from wire.error_code import ErrorCode


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_commit_that_has_returned_is_visible(world: World) -> None:
    identity = await world.begin(A0, A1)
    assert not world.stable(A0)
    await world.answered(world.end("tx", identity, commit=True))
    assert world.stable(A0) and world.stable(A1)
    assert world.markers(A0) == world.markers(A1) == [("COMMIT", 0)]


async def test_markers_follow_only_a_durable_decision(world: World) -> None:
    identity = await world.begin(A0)
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.state() is State.PREPARE_COMMIT
    assert world.markers(A0) == []
    await world.until(ending)
    assert world.markers(A0) == [("COMMIT", 0)]


async def test_the_next_transaction_meets_no_concurrent_transactions(world: World) -> None:
    identity = await world.begin(A0)
    await world.until(world.end("tx", identity, commit=True))
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0}))
    assert world.state() is State.ONGOING


async def test_every_partition_added_is_marked_even_without_data(world: World) -> None:
    identity = await world.init()
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0, A1}))
    await world.until(world.coordinator.holds.add_offsets("tx", identity, "group"))
    await world.until(world.end("tx", identity, commit=False))
    assert world.markers(A0) == world.markers(A1) == [("ABORT", 0)]
    offsets = [one for one in world.logs if one.topic == OFFSETS]
    assert sorted(map(world.markers, offsets)) == [[], [("ABORT", 0)]]


async def test_a_slow_participant_delays_the_answer_up_to_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "VISIBLE_TIMEOUT_MS", 20)
    identity = await world.begin(A0)
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    while not ending.done():
        for partition, executor in world.executors.items():
            if partition != A0 and executor.pending:
                executor.step()
        await asyncio.sleep(0)
    await ending
    assert world.coordinator.late_settlements == 1
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        await world.coordinator.holds.add_partitions("tx", identity, {A0})
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        await world.coordinator.init_producer_id("tx", TIMEOUT_MS, None)
    await world.settle()
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0}))


async def test_a_client_that_leaves_does_not_stop_what_it_decided(world: World) -> None:
    identity = await world.begin(A0)
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    await asyncio.sleep(0)
    ending.cancel()
    await world.settle()
    assert world.state() is State.COMPLETE_COMMIT
    assert world.stable(A0)


async def test_a_new_incarnation_finds_the_open_transaction_aborted(world: World) -> None:
    first = await world.begin(A0)
    second = await world.init()
    assert (first, second) == ((1000, 0), (1000, 2))
    assert world.markers(A0) == [("ABORT", 1)]
    assert world.stable(A0) and world.aborted(A0)
    with refused(ErrorCode.PRODUCER_FENCED):
        await world.end("tx", first, commit=True)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        world.produce(first, A0)


async def test_a_producer_that_bumps_its_own_epoch_goes_on_after_the_abort(world: World) -> None:
    first = await world.begin(A0)
    second = await world.init(claimed=first)
    assert second == (1000, 1)
    assert world.markers(A0) == [("ABORT", 1)]
    assert await world.init(claimed=first) == second  # the answer was lost


async def test_incarnations_at_the_same_time_get_epochs_of_their_own(world: World) -> None:
    await world.begin(A0)
    starts = [world.coordinator.init_producer_id("tx", TIMEOUT_MS, None) for _ in range(3)]
    identities = await world.until(asyncio.gather(*starts))
    assert sorted(identities) == [(1000, 2), (1000, 3), (1000, 4)]


async def test_producers_without_transactions_get_fresh_ids(world: World) -> None:
    assert [await world.init(None) for _ in range(3)] == [(1000, 0), (1001, 0), (1002, 0)]
    world.coordinator = world.new_coordinator()
    assert await world.init(None) == (2000, 0)  # the rest of the block is lost, not reused


async def test_ids_found_in_another_brokers_log_are_not_given_again(world: World) -> None:
    await world.init()
    world.next_producer_id = 0  # a fresh catalog beside an adopted log
    await world.restart()
    assert await world.init(None) == (1001, 0)


async def test_commit_retried_after_a_lost_answer_and_a_restart_is_success(world: World) -> None:
    identity = await world.begin(A0)
    await world.until(world.end("tx", identity, commit=True))
    await world.restart()
    await world.until(world.end("tx", identity, commit=True))
    assert world.markers(A0) == [("COMMIT", 0)]
    with refused(ErrorCode.INVALID_TXN_STATE):
        await world.end("tx", identity, commit=False)


async def test_one_deleted_participant_is_skipped_alone(world: World) -> None:
    world.add_topic("gone", 1)
    gone = TopicPartition("gone", 0)
    identity = await world.begin(gone, A0)
    world.delete_topic("gone")
    await world.until(world.end("tx", identity, commit=True))
    assert world.stable(A0) and world.state() is State.COMPLETE_COMMIT


async def test_a_participant_deleted_while_its_marker_is_awaited_is_skipped(world: World) -> None:
    world.add_topic("gone", 1)
    gone = TopicPartition("gone", 0)
    identity = await world.begin(gone, A0)
    executor = world.executors.pop(gone)
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    await world.settle()
    assert executor.pending and not ending.done()
    world.delete_topic("gone")
    await world.until(ending)
    assert world.stable(A0) and world.state() is State.COMPLETE_COMMIT


async def test_a_late_transaction_is_aborted_on_time_and_its_producer_fenced(world: World) -> None:
    identity = await world.begin(A0)
    world.now_ms += TIMEOUT_MS - 1
    world.coordinator.expire_due()
    assert world.state() is State.ONGOING
    world.now_ms += 1
    world.coordinator.expire_due()
    await world.settle()
    assert world.markers(A0) == [("ABORT", 1)]
    with refused(ErrorCode.PRODUCER_FENCED):
        await world.end("tx", identity, commit=True)


async def test_the_alarm_rings_by_itself(world: World) -> None:
    identity = await world.until(world.coordinator.init_producer_id("tx", 30, None))
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0}))
    world.now_ms += 30
    async with asyncio.timeout(30):
        while world.state() is not State.COMPLETE_ABORT:
            world.step()
            await asyncio.sleep(0.001)


async def test_a_transaction_that_timed_out_while_the_broker_was_down_is_aborted(
    world: World,
) -> None:
    await world.begin(A0)
    world.now_ms += TIMEOUT_MS
    await world.restart()
    world.coordinator.expire_due()
    await world.settle()
    assert world.markers(A0) == [("ABORT", 1)]
    assert world.state() is State.COMPLETE_ABORT


async def test_an_id_unused_for_long_is_forgotten_in_the_log_too(world: World) -> None:
    identity = await world.begin(A0)
    await world.until(world.end("tx", identity, commit=True))
    assert world.coordinator.store.completions.completed
    # Idle from the timeout on that its transaction would have had.
    for passed_ms in (TIMEOUT_MS, 604_800_000):
        assert world.coordinator.find("tx") is not None
        world.now_ms += passed_ms
        world.coordinator.expire_due()
    await world.settle()
    assert world.coordinator.find("tx") is None
    assert not world.coordinator.store.completions.completed
    await world.restart()
    assert list(world.coordinator) == []
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        await world.end("tx", identity, commit=True)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_partition_that_knows_a_later_coordinator_gets_its_marker_all_the_same(
    world: World, commit: bool, version: int
) -> None:
    """Its log was copied here from a cluster whose coordinator had been elected a thousand times,
    and where the same producer id had been given away."""
    identity = await world.init()
    later = TransactionMarker(identity.producer_id, 0, 1000, commit=False)
    world.logs[A0].append_marker(later, world.now_ms)
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0, A1}))
    for partition in (A0, A1):
        world.produce(identity, partition)
    await world.until(world.end("tx", identity, commit=commit, transaction_version=version))
    assert world.failures == []
    assert world.state() is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    outcome = ("COMMIT" if commit else "ABORT", version - 1)
    assert world.markers(A0) == [("ABORT", 0), outcome]
    assert world.markers(A1) == [outcome]
    assert world.stable(A0) and world.stable(A1)
    state = world.logs[A0].producers[identity.producer_id]
    assert state.coordinator_epoch == 1000
