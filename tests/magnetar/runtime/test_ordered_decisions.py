"""EndTxn over nodes where a store orders appends before they are durable: markers leave early, and
nothing is answered or seen early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence

import pytest

from coordinator.transactions.commit_plan import MarkerWork, Part, Storage
from coordinator.transactions.metadata import ProducerIdentity, State, TopicPartition
from logstore.disk.durability import Durability
from logstore.sync.group_commit import GroupCommit
from logstore.sync.medium import Performed
from logstore.sync.sync_executors import Sync
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.marker_messages import marker_of
from magnetar.runtime.markers_elsewhere import Round
from tests.logstore.simulated_executors import SteppedExecutor
from tests.magnetar.runtime.test_holds_told import Cluster
from tests.magnetar.transaction_world import A0, World
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Led by another node.
B0 = TopicPartition("b", 0)


class HeldMedium:
    """Orders and ends syncs by itself, or when it is told."""

    def __init__(self, executor: SteppedExecutor) -> None:
        self._executor = executor
        self.is_held = False
        self.order: Callable[[], None]
        self.begun: list[Performed] = []

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        self.begun.append(done)
        if not self.is_held:
            self._executor.call_soon(self._finish)

    def _finish(self) -> None:
        self.order()
        self.end()

    def end(self) -> None:
        self.begun.pop(0)(None)

    def close(self) -> None:
        """Nothing is open."""


class OtherNodes:
    """The way of markers to other nodes; they have them when told."""

    def __init__(self) -> None:
        self.brought: list[MarkerWork] = []
        self._has_them = False
        self._asked: list[Callable[[], object]] = []

    def is_led_here(self, partition: TopicPartition) -> bool:
        return partition.topic != B0.topic

    def divided(self, works: Sequence[MarkerWork]) -> tuple[list[MarkerWork], list[MarkerWork]]:
        (work,) = works
        here = [one for one in work.partitions if self.is_led_here(one)]
        there = [one for one in work.partitions if not self.is_led_here(one)]
        return [work._replace(partitions=here)], [work._replace(partitions=there)]

    def round_of(self, owed: Sequence[MarkerWork], part: Part, coordinator_epoch: int) -> Round:
        made = Round(part, coordinator_epoch)
        made.asked += [(2, work, marker_of(work, coordinator_epoch, part)) for work in owed]
        return made

    def ask(self, current: Round, on_over: Callable[[], object]) -> None:
        current.on_over = on_over
        self.brought += [work for _, work, _ in current.asked]
        self._asked.append(on_over)
        if self._has_them:
            on_over()

    def have_them(self) -> None:
        self._has_them = True
        for on_over in self._asked:
            on_over()

    def forget(self) -> None:
        self._asked.clear()


class OrderedWorld(World):
    """A node whose commits are ordered before they are durable."""

    def __post_init__(self) -> None:
        self.executor = SteppedExecutor()
        self.medium = HeldMedium(self.executor)
        self.storage = Storage.ALL_OR_NOTHING
        self.group_commit = GroupCommit(
            None,
            Durability.FSYNC,
            on_failure=self.failures.append,
            executor=self.executor,
            medium=self.medium,
        )
        self.medium.order = self.group_commit.begin_order()
        super().__post_init__()
        store = self.coordinator.store
        self.others = store.commits._elsewhere = OtherNodes()  # type: ignore[assignment]  # a fake
        store._is_led_here = self.others.is_led_here
        cluster = Cluster()
        self.coordinator.holds._told = HoldsTold(cluster, cluster, moves=True)

    async def turns(self) -> None:
        """Let everything go on that need not wait for the medium."""
        for _ in range(10):
            self.step()
            await asyncio.sleep(0)

    async def ending(self) -> tuple[ProducerIdentity, asyncio.Task[ProducerIdentity]]:
        """Decide a transaction over two nodes; nothing of it is ordered yet."""
        identity = await self.init()
        both = frozenset({A0, B0})
        await self.until(self.coordinator.holds.add_partitions("tx", identity, both))
        self.medium.is_held = True
        ending = asyncio.ensure_future(self.end("tx", identity, commit=True))
        await self.turns()
        assert len(self.medium.begun) == 1 and not self.others.brought
        return identity, ending


@pytest.fixture
def world() -> OrderedWorld:
    return OrderedWorld()


async def test_markers_leave_when_the_decision_is_ordered_and_nothing_is_seen_before_it_is_durable(
    world: OrderedWorld,
) -> None:
    _, ending = await world.ending()
    before = world.logs[A0].high_watermark
    world.medium.order()
    await world.turns()
    assert [work.partitions for work in world.others.brought] == [[B0]]
    world.others.have_them()
    await world.turns()
    assert not ending.done() and world.logs[A0].high_watermark == before
    assert world.state() is State.PREPARE_COMMIT, "COMPLETE_* comes after the markers are durable"
    world.medium.end()
    await world.turns()
    assert ending.done() and world.logs[A0].high_watermark > before


async def test_the_end_is_answered_after_the_markers_of_other_nodes(world: OrderedWorld) -> None:
    _, ending = await world.ending()
    world.medium.order()
    world.medium.end()
    await world.turns()
    assert not ending.done()
    world.others.have_them()
    await world.turns()
    assert ending.done()


async def test_an_end_whose_markers_are_all_elsewhere_is_answered_once_it_is_durable(
    world: OrderedWorld,
) -> None:
    identity = await world.init()
    await world.until(world.coordinator.holds.add_partitions("tx", identity, frozenset({B0})))
    world.medium.is_held = True
    ending = asyncio.ensure_future(world.end("tx", identity, commit=True))
    await world.turns()
    world.medium.order()
    await world.turns()
    world.others.have_them()
    await world.turns()
    assert not ending.done() and "tx" in world.coordinator.store.commits.under_way
    world.medium.end()
    await world.turns()
    assert ending.done()


async def test_no_round_waits_for_the_garbage_collector(world: OrderedWorld) -> None:
    gc.collect()
    gc.disable()
    try:
        _, ending = await world.ending()
        world.medium.order()
        world.medium.end()
        await world.turns()
        world.others.have_them()
        await world.turns()
        assert ending.done()
        world.others.forget()
        assert not [one for one in gc.get_objects() if isinstance(one, Round)]
    finally:
        gc.enable()


async def test_an_add_is_answered_once_it_is_ordered(world: OrderedWorld) -> None:
    identity = await world.init()
    world.medium.is_held = True
    adding = asyncio.ensure_future(
        world.coordinator.holds.add_partitions("tx", identity, frozenset({B0}))
    )
    await world.turns()
    assert not adding.done()
    world.medium.order()
    await world.turns()
    assert adding.done()
    log, end_offset = world.coordinator.holds.check_produce(
        "tx", *identity, *B0, is_abortable_known=True
    )
    assert log.high_watermark < end_offset, "an acknowledgement of data waits for it"


async def test_data_of_the_next_transaction_waits_until_the_last_end_is_ordered(
    world: OrderedWorld,
) -> None:
    identity, ending = await world.ending()
    world.medium.is_held = False
    world.medium.order()
    world.medium.end()
    world.others.have_them()
    await world.answered(ending)
    world.medium.is_held = True
    adding = asyncio.ensure_future(
        world.coordinator.holds.add_partitions("tx", identity, frozenset({A0}))
    )
    await world.turns()
    with pytest.raises(KafkaError) as refused:
        world.coordinator.holds.check_produce("tx", *identity, *A0, is_abortable_known=True)
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.medium.order()
    await world.turns()
    assert adding.done()
    world.coordinator.holds.check_produce("tx", *identity, *A0, is_abortable_known=True)
