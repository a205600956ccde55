"""Transaction version 2 at work: data adds its partitions, ends bump the epoch, retries count."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordinator.transactions.metadata import (
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.records import decode_record
from logstore.partition.reader import items_of
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.magnetar.transaction_world import A0, A1, World, batch_by, refused
from wire.error_code import ErrorCode
from wire.records import Marker, Record


@pytest.fixture
async def world() -> World:
    return World()


def send(
    world: World, identity: ProducerIdentity, partition: TopicPartition, sequence: int = 0
) -> None:
    """Add and append in one step, as Produce v12 does."""
    log = world.logs[partition]
    checked = log.check(batch_by(identity, sequence), world.now_ms)
    world.coordinator.holds.hold("tx", *identity, frozenset({partition}))
    log.append(checked)


async def end(world: World, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
    return await world.until(world.end("tx", identity, commit=commit, transaction_version=2))


def age(world: World, producer_epoch: int) -> ProducerIdentity:
    """Bring the producer to a late epoch, as many transactions would."""
    txn = world.coordinator.find("tx")
    assert txn is not None
    shard = world.coordinator.store.shard_of("tx")
    aged = txn._replace(producer_epoch=producer_epoch)
    shard.append([aged], world.now_ms)
    return aged.identity


async def test_data_adds_its_partition_and_an_answered_end_is_visible(world: World) -> None:
    identity = await world.init()
    for commit in (True, False, True):
        send(world, identity, A0)
        send(world, identity, A1)
        assert world.state() is State.ONGOING
        ended = await end(world, identity, commit=commit)
        assert ended == (identity.producer_id, identity.producer_epoch + 1)
        assert world.stable(A0) and world.stable(A1)
        identity = ended
    assert world.markers(A0) == [("COMMIT", 1), ("ABORT", 2), ("COMMIT", 3)]
    assert world.markers(A1) == world.markers(A0)


def states_by_batch(world: World) -> list[list[State]]:
    """Return the states that the coordinator's log has of the id, batch by batch."""
    reader = world.coordinator.store.shard_of("tx").log.reader
    return [
        [txn.state for txn in map(_decoded, items_of(header, bytes(batch)))]
        for header, batch in reader.iterate_batches_from(0)
    ]


def _decoded(item: Record | Marker) -> TransactionMetadata:
    assert isinstance(item, Record)
    txn = decode_record(item.key, item.value)
    assert txn is not None
    return txn


async def test_an_owed_complete_is_in_one_batch_with_the_next_record(world: World) -> None:
    identity = await world.init()
    send(world, identity, A0)
    successor = await world.answered(world.end("tx", identity, commit=True, transaction_version=2))
    send(world, successor, A0)
    assert states_by_batch(world) == [
        [State.EMPTY],
        [State.ONGOING],
        [State.PREPARE_COMMIT],
        [State.COMPLETE_COMMIT, State.ONGOING],
    ]
    await world.settle()
    assert not world.coordinator.store.completions.owed
    await world.restart()
    assert world.state() is State.ONGOING


async def test_an_owed_complete_stays_owed_where_nothing_is_decided(world: World) -> None:
    identity = await world.init()
    send(world, identity, A0)
    successor = await world.answered(world.end("tx", identity, commit=True, transaction_version=2))
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        send(world, identity, A0)
    retry = world.end("tx", identity, commit=True, transaction_version=2)
    assert await world.answered(retry) == successor
    assert states_by_batch(world)[-1] == [State.PREPARE_COMMIT]
    await world.settle()
    assert states_by_batch(world)[-1] == [State.COMPLETE_COMMIT]


async def test_a_refused_batch_adds_nothing(world: World) -> None:
    identity = await world.init()
    stale = ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        send(world, stale, A0)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        send(world, ProducerIdentity(77, 0), A0)
    assert world.state() is State.EMPTY
    assert world.logs[A0].log_end_offset == 0


async def test_the_add_is_awaited_with_the_data(world: World) -> None:
    identity = await world.init()
    send(world, identity, A0)
    log, end_offset = world.coordinator.holds.hold("tx", *identity, frozenset({A0}))  # held already
    waiting = asyncio.ensure_future(log.durable(end_offset))
    for _ in range(5):
        if world.executors[A0].pending:
            world.executors[A0].step()
        await asyncio.sleep(0)
    assert world.logs[A0].high_watermark == 1
    assert not waiting.done()  # the data is durable, what it rests on is not
    await world.until(waiting)


async def test_a_retried_end_waits_for_the_markers_and_is_answered_the_same(world: World) -> None:
    identity = await world.init()
    send(world, identity, A0)
    first = asyncio.ensure_future(world.end("tx", identity, commit=True, transaction_version=2))
    await asyncio.sleep(0)
    assert world.state() is State.PREPARE_COMMIT
    again = await end(world, identity, commit=True)
    assert again == first.result() == (identity.producer_id, 1)
    assert await end(world, identity, commit=True) == again
    with refused(ErrorCode.INVALID_TXN_STATE):
        await end(world, identity, commit=False)
    assert world.markers(A0) == [("COMMIT", 1)]


@pytest.mark.parametrize("epoch", [0, 32766], ids=["a bump", "a rotation"])
async def test_what_is_delayed_past_the_end_is_refused(epoch: int, world: World) -> None:
    await world.init()
    earlier = age(world, epoch)
    send(world, earlier, A0)
    identity = await end(world, earlier, commit=True)
    send(world, identity, A0)
    for commit in (True, False):
        with pytest.raises(Exception, match="PRODUCER_FENCED|INVALID_PRODUCER_ID_MAPPING"):
            await end(world, earlier, commit=commit)
    with pytest.raises(Exception, match="INVALID_PRODUCER_EPOCH|INVALID_PRODUCER_ID_MAPPING"):
        send(world, earlier, A0, sequence=1)
    assert world.state() is State.ONGOING
    await end(world, identity, commit=False)
    assert [kind for kind, _ in world.markers(A0)] == ["COMMIT", "ABORT"]


async def test_the_last_epoch_rotates_the_producer_id(world: World) -> None:
    await world.init()
    last = age(world, 32766)
    send(world, last, A0)
    ended = await end(world, last, commit=True)
    assert ended == (last.producer_id + 1, 0)
    assert world.markers(A0) == [("COMMIT", 32767)]
    assert await end(world, last, commit=True) == ended
    assert await world.init(claimed=last) == ended
    send(world, ended, A0)
    assert await end(world, ended, commit=True) == (ended.producer_id, 1)
    other = await world.until(world.coordinator.init_producer_id(None, 1, None))
    assert other.producer_id > ended.producer_id


async def test_a_start_that_completes_a_rotation_asks_for_no_producer_ids(world: World) -> None:
    """They are in the catalog, which may not answer, and the decision has the one that it needs."""
    await world.init()
    last = age(world, 32766)
    send(world, last, A0)
    await world.settle()
    ending = asyncio.ensure_future(world.end("tx", last, commit=True, transaction_version=2))
    await asyncio.sleep(0)
    for one in (one for one in world.logs if one.topic == TRANSACTION_STATE):
        while world.executors[one].pending:
            world.executors[one].step()
    assert world.state() is State.PREPARE_COMMIT
    ending.cancel()
    given_end = world.next_producer_id
    await world.restart()
    assert await end(world, last, commit=True) == (last.producer_id + 1, 0)
    assert world.state() is State.COMPLETE_COMMIT
    assert world.next_producer_id == given_end


@pytest.mark.parametrize("epoch", [0, 32766], ids=["a bump", "a rotation"])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("synced", ["nothing", "the decision", "the markers", "everything"])
async def test_an_end_is_retried_after_a_crash_at_any_stage(
    synced: str, commit: bool, epoch: int, world: World
) -> None:
    """Reload in PREPARE_* and COMPLETE_*: the same identity is answered, and one marker stands."""
    await world.init()
    identity = age(world, epoch)
    send(world, identity, A0)
    await world.settle()
    ending = asyncio.ensure_future(world.end("tx", identity, commit=commit, transaction_version=2))
    await asyncio.sleep(0)
    state = [one for one in world.logs if one.topic == TRANSACTION_STATE]
    for _ in range({"nothing": 0, "the decision": 4, "the markers": 4, "everything": 0}[synced]):
        for one in (*state, A0) if synced == "the markers" else state:
            if world.executors[one].pending:
                world.executors[one].step()
        await asyncio.sleep(0)
    if synced == "everything":
        await world.until(ending)
    ending.cancel()
    await world.restart()
    assert world.state() is not State.PREPARE_COMMIT
    ended = await end(world, identity, commit=commit)
    assert ended != identity and ended.producer_epoch == (1 if epoch == 0 else 0)
    outcome = "COMMIT" if commit else "ABORT"
    assert world.markers(A0) == [(outcome, epoch + 1)]
    assert world.stable(A0)
    assert await end(world, identity, commit=commit) == ended
    send(world, ended, A0)
    await end(world, ended, commit=True)


@pytest.mark.parametrize("epoch", [0, 32766], ids=["a bump", "a rotation"])
async def test_a_timed_out_owner_may_abort_and_go_on(epoch: int, world: World) -> None:
    await world.init()
    identity = age(world, epoch)
    send(world, identity, A0)
    world.now_ms += 60_000
    world.coordinator.expire_due()
    with refused(ErrorCode.INVALID_TXN_STATE):
        await end(world, identity, commit=True)
    successor = await end(world, identity, commit=False)
    assert await world.init(claimed=identity) == successor
    assert successor.producer_epoch in (0, 1)
    send(world, successor, A0)
    await end(world, successor, commit=True)
    assert [kind for kind, _ in world.markers(A0)] == ["ABORT", "COMMIT"]


async def test_a_fenced_owner_is_not_told_the_new_epoch(world: World) -> None:
    identity = await world.init()
    send(world, identity, A0)
    newer = await world.init()
    assert newer == (identity.producer_id, identity.producer_epoch + 2)
    for commit in (True, False):
        with refused(ErrorCode.PRODUCER_FENCED):
            await end(world, identity, commit=commit)


async def test_an_id_changes_from_version_1_to_2_and_back(world: World) -> None:
    identity = await world.begin(A0)  # version 1
    await world.until(world.end("tx", identity, commit=True))
    send(world, identity, A1)
    identity = await end(world, identity, commit=True)
    await world.until(world.coordinator.holds.add_partitions("tx", identity, {A0}))
    world.produce(identity, A0)
    await world.until(world.end("tx", identity, commit=False))
    assert world.markers(A0) == [("COMMIT", 0), ("ABORT", 1)]
    assert world.markers(A1) == [("COMMIT", 1)]
    await world.restart()
    send(world, identity, A0, sequence=1)
    await end(world, identity, commit=True)
    assert world.stable(A0) and world.stable(A1)


async def test_an_abort_of_nothing_asks_no_partition(world: World) -> None:
    identity = await world.init()
    for _ in range(3):
        successor = await end(world, identity, commit=False)
        assert successor == (identity.producer_id, identity.producer_epoch + 1)
        assert await end(world, identity, commit=False) == successor
        identity = successor
    await world.restart()
    assert world.state() is State.COMPLETE_ABORT
    assert world.logs[A0].log_end_offset == 0


@pytest.mark.parametrize("epoch", [0, 32766], ids=["a bump", "a rotation"])
async def test_whatever_could_be_begun_can_be_ended(epoch: int, world: World) -> None:
    """The record of an end may be larger than that of the last add: room for it was kept."""
    await world.init()
    identity = age(world, epoch)
    for index, log in enumerate(world.logs.values()):
        if log.topic == TRANSACTION_STATE:
            log.config = replace(log.config, max_message_bytes=400 + index)
    world.add_topic("b", 100)
    added = 0
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        for index in range(100):
            partitions = {TopicPartition("b", index)}
            await world.until(world.coordinator.holds.add_partitions("tx", identity, partitions))
            added += 1
    assert 10 < added < 100
    successor = await end(world, identity, commit=True)
    assert [kind for kind, _ in world.markers(TopicPartition("b", added - 1))] == ["COMMIT"]
    send(world, successor, A0)
    await end(world, successor, commit=True)


async def test_data_whose_add_went_with_the_end_before_it_is_adopted_at_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its producer is fenced first, and the next commit in that partition takes it along."""
    identity = await world.init()
    send(world, identity, A0)
    await world.settle()
    successor = await world.answered(world.end("tx", identity, commit=True, transaction_version=2))
    send(world, successor, A0)
    for _ in range(4):  # its data is durable, COMPLETE_COMMIT and its add are not
        if world.executors[A0].pending:
            world.executors[A0].step()

    async def at_once() -> None:
        """Instead of the time that passes after a start."""

    monkeypatch.setattr(world, "settle", at_once)
    await world.restart()
    assert world.state() is State.COMPLETE_COMMIT
    world.adopt_if_lost(A0)
    assert world.state() is State.ONGOING


async def test_whoever_is_fenced_is_told_also_while_the_last_end_is_not_durable(
    world: World,
) -> None:
    zombie = await world.init()
    identity = await world.begin(A0)  # version 1
    await world.answered(world.end("tx", identity, commit=True))
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        send(world, identity, A1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        send(world, zombie, A1)
    await world.settle()
    send(world, identity, A1)
