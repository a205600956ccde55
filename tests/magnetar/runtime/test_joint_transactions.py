"""Joint transactions in the runtime: votes, the seal and decisions over syncs, crashes and time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transactions.metadata import ProducerIdentity, State, TopicPartition
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.magnetar.transaction_world import A0, A1, TIMEOUT_MS, World
from tests.simulation.history import read_committed
from wire.error_code import ErrorCode
from wire.errors import KafkaError

PARENT, ONE, TWO = "p", "p~>one", "p~>two"


@pytest.fixture
async def world() -> World:
    world = World()
    world.ensure_internal(TRANSACTION_STATE)
    return world


class Member:
    """A producer of a family, of either version, that writes one record to each partition."""

    def __init__(self, world: World, name: str, version: int) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.identity = ProducerIdentity(-1, -1)

    async def write(self, *partitions: TopicPartition, text: bytes = b"apple") -> None:
        """Begin anew, and write."""
        coordinator = self.world.coordinator
        self.identity = await coordinator.init_producer_id(self.name, TIMEOUT_MS, None)
        await self.append(*partitions, text=text)

    async def append(self, *partitions: TopicPartition, text: bytes = b"apple") -> None:
        coordinator = self.world.coordinator
        if self.version == 1:
            await coordinator.holds.add_partitions(self.name, self.identity, set(partitions))
        for partition in partitions:
            if self.version == 1:
                held = coordinator.holds.check_produce(
                    self.name, *self.identity, *partition, is_abortable_known=True
                )
            else:
                held = coordinator.holds.hold(self.name, *self.identity, {partition})
            batch = batch_of(
                text,
                producer_id=self.identity.producer_id,
                epoch=self.identity.producer_epoch,
                sequence=0,
                transactional=True,
            )
            appended = self.world.logs[partition].append(
                self.world.logs[partition].check(batch, self.world.now_ms)
            )
            await self.world.logs[partition].durable(appended.end_offset)
            log, end_offset = held
            await log.durable(end_offset)

    async def end(self, *, commit: bool) -> None:
        self.identity = await self.world.end(
            self.name, self.identity, commit=commit, transaction_version=self.version
        )


def family(world: World, versions: tuple[int, int, int] = (1, 2, 2)) -> tuple[Member, ...]:
    """Return the parent and two children."""
    return tuple(
        Member(world, name, version)
        for name, version in zip((PARENT, ONE, TWO), versions, strict=True)
    )


async def transfer(world: World, told: list[str], versions: tuple[int, int, int]) -> None:
    """Two joint transactions over both partitions, one committed and one aborted.

    `told` grows by what the parent is told.
    """
    for commit in (True, False):
        parent, one, two = family(world, versions)
        await one.write(A0, A1)
        await two.write(A1)
        await one.end(commit=True)
        await two.end(commit=True)
        await parent.write(A0)
        await parent.end(commit=commit)
        told.append("COMMIT" if commit else "ABORT")


async def outcomes_after_crash(world: World, told: list[str]) -> None:
    """Restart, let all deadlines pass; each joint transaction must have one outcome everywhere."""
    await world.restart()
    assert world.failures == []
    for _ in range(4):  # the timeout of who is open, of who was adopted after that, of votes
        adopt_what_is_lost(world)
        world.now_ms += 900_000
        world.coordinator.expire_due()
        await world.settle()
    assert all(not txn.partitions for txn in world.coordinator)
    assert world.coordinator.store.index.vote_count == 0
    whole = {}
    for partition in (A0, A1):
        assert not list(world.logs[partition].transactions.open_transactions())
        assert world.stable(partition)
        whole[partition] = committed(world, partition)
    # Of the first transaction all or nothing: two records in each partition; of the second nothing.
    assert whole in ({A0: 2, A1: 2}, {A0: 0, A1: 0})
    if told:
        assert whole == {A0: 2, A1: 2}


def committed(world: World, partition: TopicPartition) -> int:
    """Return how many records a read_committed reader is shown."""
    return len(read_committed(world.logs[partition]))


def adopt_what_is_lost(world: World) -> None:
    """Heal."""
    for partition in (A0, A1):
        world.adopt_if_lost(partition)


async def crash(rounds: int, chosen: list[int], versions: tuple[int, int, int]) -> bool:
    """Crash in the story, as `World.until_crash` says; returns whether it was at its end."""
    world, told = World(), list[str]()
    is_over = await world.until_crash(transfer(world, told, versions), rounds, chosen)
    await outcomes_after_crash(world, told)
    return is_over


@pytest.mark.parametrize("subset", range(16))
async def test_a_crash_at_any_moment_leaves_one_outcome_for_the_family(subset: int) -> None:
    rounds = 0
    versions = (1 + (subset >> 1 & 1), 1 + (subset >> 2 & 1), 2 - (subset >> 1 & 1))
    while not await crash(rounds, [subset] * 4, versions):
        rounds += 1
    assert rounds > 15


versions = st.tuples(*[st.sampled_from([1, 2])] * 3)


@settings(deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 15), max_size=8), versions)
def test_a_crash_after_any_order_of_syncs_leaves_one_outcome_for_the_family(
    rounds: int, chosen: list[int], versions: tuple[int, int, int]
) -> None:
    asyncio.run(crash(rounds, chosen, versions))


@pytest.mark.parametrize("target", [TopicPartition(TRANSACTION_STATE, 0), A0, A1])
@pytest.mark.parametrize("appends", range(12))
async def test_a_full_disk_at_any_write_is_survived_by_the_family(
    target: TopicPartition, appends: int, world: World
) -> None:
    told: list[str] = []
    await world.until_disk_is_full(transfer(world, told, (0, 2, 2)), target, appends)
    await outcomes_after_crash(world, told)


async def test_a_vote_is_answered_when_it_is_durable_and_not_before(world: World) -> None:
    _, one, _ = family(world)
    await world.until(one.write(A0))
    voting = asyncio.ensure_future(one.end(commit=True))
    for _ in range(5):
        await asyncio.sleep(0)
        for partition in (A0, A1):
            world.executors[partition].run()
    assert not voting.done()
    await world.until(voting)
    assert world.state(ONE) is State.VOTED and not world.stable(A0)


async def test_votes_and_the_parents_own_data_become_visible_together(world: World) -> None:
    parent, one, two = family(world)
    for child in (one, two):
        await world.until(child.write(A0))
        await world.until(child.end(commit=True))
    await world.until(parent.write(A0))
    assert committed(world, A0) == 0
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(committed(world, A0))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await world.until(parent.end(commit=True))
    watching.cancel()
    assert set(seen) == {0, 3}


async def test_an_answered_end_of_the_parent_leaves_nothing_of_its_children_open(
    world: World,
) -> None:
    """Also not of a child that has not voted: it would hold back what has just been committed."""
    for commit in (True, False):
        parent, one, two = family(world)
        await world.until(one.write(A0))
        await world.until(one.end(commit=True))
        await world.until(two.write(A0))
        await world.until(parent.write(A1))
        await world.answered(parent.end(commit=commit))
        assert world.stable(A0) and world.stable(A1)
        await world.settle()


async def test_the_children_may_go_on_at_once_when_the_parents_end_is_answered(
    world: World,
) -> None:
    for versions in ((1, 1, 2), (2, 2, 1)):
        parent, one, two = family(world, versions)
        for child in (one, two):
            await world.until(child.write(A0))
            await world.until(child.end(commit=True))
        await world.until(parent.write(A1))
        await world.answered(parent.end(commit=True))
        for child in (one, two):
            await world.until(child.append(A1))
            await world.until(child.end(commit=False))


async def test_a_parent_that_aborted_nothing_may_go_on_before_its_children_are_ended(
    world: World,
) -> None:
    """Another connection of it does not wait for the answer, which the children's markers delay."""
    parent, one, _ = family(world, (2, 2, 2))
    parent.identity = await world.init(PARENT)
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    successor = Member(world, PARENT, 2)
    successor.identity = ProducerIdentity(parent.identity.producer_id, 1)
    aborting = asyncio.ensure_future(parent.end(commit=False))
    await asyncio.sleep(0)

    async def go_on() -> None:
        await successor.append(A1)
        await successor.end(commit=True)

    going_on = asyncio.ensure_future(go_on())
    for _ in range(50):  # every disk syncs but that of the child's marker
        for partition, executor in world.executors.items():
            if partition != A0 and executor.pending:
                executor.step()
        await asyncio.sleep(0)
    assert world.state(PARENT) is State.PREPARE_COMMIT and world.stable(A1)
    assert not aborting.done() and not going_on.done()
    await world.until(asyncio.gather(aborting, going_on))
    assert world.failures == [] and world.state(PARENT) is State.COMPLETE_COMMIT
    assert (committed(world, A0), committed(world, A1)) == (0, 1)


async def test_a_child_whose_begin_was_lost_with_its_parents_is_adopted_under_the_seal(
    world: World,
) -> None:
    """Else a later incarnation's end would end what it has left open, as its own."""
    parent, one, _ = family(world, (2, 2, 2))
    for member in (one, parent):
        member.identity = await world.init(member.name)
    for member, partition in ((one, A0), (parent, A1)):
        writing = asyncio.ensure_future(member.append(partition))
        for _ in range(5):  # the coordinator's log is not synced any more
            await asyncio.sleep(0)
            world.executors[partition].run()
        writing.cancel()
    await world.restart()
    for partition in (A1, A0):
        world.adopt_if_lost(partition)
    await world.settle()
    assert world.state(PARENT) is world.state(ONE) is State.ONGOING
    again = Member(world, ONE, 2)
    again.identity = await world.init(ONE)
    await world.until(parent.end(commit=True))
    await world.until(again.append(A0, text=b"pear"))
    await world.until(again.end(commit=True))
    await world.until(Member.write(parent, A1))
    await world.until(parent.end(commit=True))
    assert read_committed(world.logs[A0]) == ["pear"]


async def test_a_late_vote_is_refused_once_its_abort_is_visible(world: World) -> None:
    parent, late, _ = family(world)
    await world.until(late.write(A0))
    await world.until(parent.write(A1))
    with pytest.raises(KafkaError) as refused:
        await world.until(late.end(commit=True))
    assert refused.value.code is ErrorCode.PRODUCER_FENCED
    assert world.stable(A0) and committed(world, A0) == 0


async def test_a_fence_of_a_vote_is_answered_once_its_abort_is_visible(world: World) -> None:
    _, one, _ = family(world)
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    await world.answered(world.coordinator.init_producer_id(ONE, TIMEOUT_MS, None))
    assert world.stable(A0) and committed(world, A0) == 0


async def test_a_fence_of_a_vote_that_is_being_decided_waits_for_the_decision(
    world: World,
) -> None:
    parent, one, _ = family(world)
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    await world.until(parent.write(A1))
    ending = asyncio.ensure_future(parent.end(commit=True))
    await asyncio.sleep(0)
    fenced = await world.until(world.coordinator.init_producer_id(ONE, TIMEOUT_MS, None))
    await ending
    assert fenced.producer_epoch == one.identity.producer_epoch + 1
    assert committed(world, A0) == 1


async def test_expired_votes_are_counted_and_free_their_readers(world: World) -> None:
    _, one, two = family(world)
    for child in (one, two):
        await world.until(child.write(A0))
        await world.until(child.end(commit=True))
    store = world.coordinator.store
    assert store.index.vote_count == 2
    oldest = store.index.oldest_vote()
    assert oldest is not None and oldest.transactional_id == ONE
    world.now_ms += 900_000
    world.coordinator.expire_due()
    await world.settle()
    assert store.expiry.votes_expired == 2 and store.index.vote_count == 0
    assert world.stable(A0) and committed(world, A0) == 0


async def test_a_round_of_many_waves_outlives_the_time_of_a_vote(world: World) -> None:
    """Each vote renews those before it; a round without any for so long is given up."""
    parent, *_ = family(world)
    for number in range(4):
        worker = Member(world, f"{PARENT}~>{number}", 1)
        await world.until(worker.write(A0))
        await world.until(worker.end(commit=True))
        world.now_ms += 600_000
        world.coordinator.expire_due()
        await world.settle()
        await world.restart()
    assert world.coordinator.store.index.vote_count == 4
    await world.until(parent.write(A1))
    await world.until(parent.end(commit=True))
    assert committed(world, A0) == 4


async def test_a_sealed_vote_does_not_keep_the_alarm_ringing(world: World) -> None:
    parent, one, _ = family(world)
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    world.now_ms += 899_990
    await world.until(parent.write(A1))
    world.now_ms += 20
    for _ in range(3):
        world.coordinator.expire_due()
    assert world.state(ONE) is State.VOTED
    rings: list[None] = []
    world.coordinator.store.expiry._alarm._ring = lambda: rings.append(None)
    await asyncio.sleep(0.01)
    assert not rings
    await world.until(parent.end(commit=True))
    assert committed(world, A0) == 1


async def test_the_end_of_a_decision_leaves_nothing_to_be_done_or_waited_for(world: World) -> None:
    """COMPLETE_* of a parent and its votes costs no sync of its own."""
    parent, one, _ = family(world, (2, 2, 2))
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    await world.until(parent.write(A1))
    await world.answered(parent.end(commit=True))
    store = world.coordinator.store
    store.complete(PARENT)
    assert world.state(PARENT) is world.state(ONE) is State.COMPLETE_COMMIT
    waiting = asyncio.ensure_future(store.commits.visible(PARENT))
    await asyncio.sleep(0)
    assert waiting.done()


async def test_a_vote_whose_end_is_still_to_be_appended_has_not_expired(world: World) -> None:
    parent, one, _ = family(world, (2, 2, 2))
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    world.now_ms += 899_990
    await world.until(parent.write(A1))
    await world.answered(parent.end(commit=True))
    assert world.state(ONE) is State.VOTED
    world.now_ms += 20
    world.coordinator.expire_due()
    assert world.state(ONE) is State.COMPLETE_COMMIT
    assert world.coordinator.store.expiry.votes_expired == 0


async def test_a_parent_whose_time_passes_takes_its_votes_with_it(world: World) -> None:
    parent, one, _ = family(world)
    await world.until(one.write(A0))
    await world.until(one.end(commit=True))
    await world.until(parent.write(A1))
    world.now_ms += TIMEOUT_MS
    world.coordinator.expire_due()
    await world.settle()
    assert committed(world, A0) == committed(world, A1) == 0
    assert world.stable(A0) and world.stable(A1)
    assert world.coordinator.store.expiry.timed_out == 1


async def test_a_family_keeps_together_when_the_separator_changes(world: World) -> None:
    """Votes of before are still their parent's; ids that were children stay where they are."""
    parent, one, two = family(world)
    for child in (one, two):
        await world.until(child.write(A0))
        await world.until(child.end(commit=True))
    world.separator = ""
    await world.restart()
    await world.until(parent.write(A1))
    await world.until(parent.end(commit=True))
    assert committed(world, A0) == 2
    await world.until(one.append(A1))
    await world.until(one.end(commit=True))
    assert world.state(ONE) is State.VOTED
    # A new id has the parent that its client says now: none.
    plain = Member(world, "p~>plain", 2)
    await world.until(plain.write(A1))
    await world.until(plain.end(commit=True))
    assert world.state("p~>plain") is State.COMPLETE_COMMIT


async def test_an_id_of_before_stays_ordinary_where_it_is_until_it_is_forgotten(
    world: World,
) -> None:
    world.separator = ""
    await world.restart()
    names = [f"q~>{number}" for number in range(8)]
    for name in names:
        await world.until(world.coordinator.init_producer_id(name, TIMEOUT_MS, None))
    world.separator = "~>"
    await world.restart()
    for name in names:
        member = Member(world, name, 2)
        await world.until(member.write(A0))
        await world.until(member.end(commit=True))
        assert world.state(name) is State.COMPLETE_COMMIT
    assert world.coordinator.store._kept_in  # of eight some lie in the other shard
    # Idle from the timeout on that its transaction would have had.
    for passed_ms in (TIMEOUT_MS, 604_800_000):
        world.now_ms += passed_ms
        world.coordinator.expire_due()
    await world.settle()
    assert not world.coordinator.store._kept_in and not list(world.coordinator)
    child = Member(world, names[0], 2)
    await world.until(child.write(A0))
    await world.until(child.end(commit=True))
    assert world.state(names[0]) is State.VOTED


@pytest.mark.parametrize("name", ["a~>b~>c", "~>c", "p~>", "p~>\0"])
async def test_an_id_that_is_neither_child_nor_plain_is_refused(name: str, world: World) -> None:
    with pytest.raises(KafkaError) as refused:
        await world.init(name)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert world.coordinator.find(name) is None
