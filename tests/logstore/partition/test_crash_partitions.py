"""Power loss and kills at any step: what was acknowledged is there, state and all; nothing that
was visible is gone, nothing else ever was visible."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.disk.durability import Durability
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.snapshot import SUFFIX
from logstore.partition.snapshots import snapshot_offsets
from logstore.partition.state import PartitionState
from tests.logstore.compaction import perform_beside
from tests.logstore.log_process import LogProcess
from tests.logstore.partitions import delete_records, expire
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.logstore.traffic import OPERATIONS, Expected, Traffic
from tests.soak import SOAK
from wire.records import BatchHeader, ControlType, iterate_batches, parse_marker

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=200,
    segment_index_bytes=800,
    snapshot_interval_bytes=400,
)
STEP = st.tuples(
    st.sampled_from(
        (
            *OPERATIONS,
            *("sync step", "sync step", "settle", "checkpoint", "promise", "delete"),
            *("expire", "expire beside"),
        )
    ),
    st.integers(0, 2),
    st.integers(1, 4),
)


class World(LogProcess):
    """One partition in a directory on a simulated disk, and the process that has it open."""

    def __init__(self, disk: SimulatedDisk, durability: Durability = Durability.FSYNC) -> None:
        self.disk = disk
        self.durability = durability
        self.highest_seen = 0
        self.deleted_before = 0
        self.traffic: Traffic | None = None

    def start(self) -> PartitionLog:
        self.begin(self.disk, CONFIG, self.durability)
        self.log = self.directory.open("topic", 0)
        return self.log

    def perform(self, operation: str, producer: int, count: int) -> None:
        assert self.traffic is not None
        if operation == "sync step":
            self.executor.step()
        elif operation == "settle":
            self.executor.run()
        elif operation == "checkpoint":
            self.timers.run()
        elif operation in ("promise", "delete"):
            before = min(self.log.high_watermark, self.log.log_start_offset + 3 * count)
            # Durable before anything is deleted, so it may come true from here on.
            self.persist_start(self.log, before)
            if operation == "delete":
                delete_records(self.log, before)
                self.deleted_before = before
        elif operation.startswith("expire"):
            self.expire(count, is_beside=operation == "expire beside")
        else:
            self.traffic.perform(operation, producer, count)
        self.highest_seen = max(self.highest_seen, self.log.high_watermark)

    def expire(self, count: int, *, is_beside: bool) -> None:
        """Retention's way: whole segments, the active one at last, below the stable offset.

        `is_beside`: the event loop goes on while the disk works.
        """
        log = self.log
        ends = [facts.end_offset for facts in log.ledger.segments.facts()]
        due = [end for end in ends if end <= log.last_stable_offset][:count]
        if due and due[-1] > log.log_start_offset:
            self.persist_start(log, due[-1])
            self.deleted_before = due[-1]
            for end in due:
                if is_beside:
                    perform_beside(self.executor.step, _expire_beside(log, end))
                else:
                    expire(log, end)


async def _expire_beside(log: PartitionLog, start_offset: int) -> None:
    log.roll_at(start_offset)
    await log.until_told(start_offset)
    log.advance_start(start_offset)


def check_recovered(world: World, traffic: Traffic) -> None:
    """What the log has is a prefix of what was appended, and no shorter than what was seen."""
    log = world.log
    assert log.log_end_offset == log.high_watermark >= world.highest_seen
    assert log.log_start_offset >= world.deleted_before
    stored = [bytes(batch) for _, batch in log.ledger.batches.iterate(log.log_start_offset)]
    kept = len([None for end in ends(traffic) if end <= log.log_end_offset])
    appended = traffic.appended[:kept]
    if stored:
        assert appended[-len(stored) :] == stored
    expected = Expected(appended)
    assert log.log_end_offset == max(expected.end_offset, log.log_start_offset)
    assert log.state == folded(appended, log.log_start_offset)
    stable = max(expected.last_stable_offset(log.high_watermark), log.log_start_offset)
    assert log.last_stable_offset == stable
    check_aborted(log, expected)


def folded(appended: list[bytes], start_offset: int) -> PartitionState:
    """The state as all batches ever appended make it, those deleted since included."""
    state = PartitionState()
    for batch in appended:
        header = BatchHeader.parse(batch)
        if header.is_control:
            marker = parse_marker(batch)
            commit = marker.control_type is ControlType.COMMIT
            state.on_marker(header, marker.coordinator_epoch, 1_000, commit=commit)
        else:
            state.on_batch(header, 1_000)
    state.end_offset = max(state.end_offset, start_offset)
    state.transactions.aborted.prune(start_offset)
    state.leader_epochs.prune(start_offset)
    return state


def ends(traffic: Traffic) -> list[int]:
    return [header.next_offset for header in Expected([b for b in traffic.appended if b]).headers]


def check_aborted(log: PartitionLog, expected: Expected) -> None:
    found = log.reader.read(log.log_start_offset, 1 << 20, Isolation.READ_COMMITTED)
    assert found is not None and found.aborted is not None
    headers = [header for header, _ in iterate_batches(found.records)]
    if headers:
        assert found.aborted == expected.aborted(log.log_start_offset, headers[-1].next_offset)


@given(
    steps=st.lists(STEP, min_size=5, max_size=60),
    ends_by=st.lists(st.sampled_from(["power", "kill", "clean"]), min_size=1, max_size=4),
    points=st.lists(st.integers(0, 120), min_size=4, max_size=4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150 * SOAK, deadline=None)
def test_everything_acknowledged_survives_any_crash(
    steps: list[tuple[str, int, int]], ends_by: list[str], points: list[int], seed: int
) -> None:
    random = Random(seed)
    world = World(SimulatedDisk(seed=seed))
    traffic = world.traffic = Traffic(world.start())
    for ending, point in zip(ends_by, points, strict=False):
        if ending == "power":
            world.disk.lose_power_after(point)
        try:
            for step in steps:
                world.perform(*step)
            if ending == "clean":
                world.stop()
        except PowerLost:
            pass
        assert not world.failures
        world.disk = world.disk.crash(random) if ending == "power" else world.disk.kill(random)
        traffic.log = world.start()
        complete_last(traffic, world.log)
        check_recovered(world, traffic)
        traffic.recovered(len([end for end in ends(traffic) if end <= world.log.log_end_offset]))
        world.highest_seen = world.log.high_watermark


@given(steps=st.lists(STEP, min_size=5, max_size=60), kills=st.integers(1, 3))
@example(
    steps=[
        ("plain", 0, 1),
        ("idempotent", 0, 1),
        ("sync step", 0, 1),
        ("delete", 0, 3),
        ("plain", 0, 3),
        ("plain", 0, 3),
    ],
    kills=3,
)
@settings(max_examples=40 * SOAK, deadline=None)
def test_without_syncs_everything_acknowledged_survives_the_process(
    steps: list[tuple[str, int, int]], kills: int
) -> None:
    world = World(SimulatedDisk(), Durability.PAGE_CACHE)
    traffic = world.traffic = Traffic(world.start())
    for seed in range(kills):
        for step in steps:
            world.perform(*step)
        world.disk = world.disk.kill(Random(seed))
        traffic.log = world.start()
        check_recovered(world, traffic)
        traffic.recovered(len(traffic.appended))


def complete_last(traffic: Traffic, log: PartitionLog) -> None:
    """The append that power was lost in may be in the log or not: take its bytes from there."""
    if traffic.appended and not traffic.appended[-1]:
        traffic.appended.pop()
        known = ends(traffic)[-1] if traffic.appended else 0
        if log.log_end_offset > known:
            traffic.appended += [bytes(batch) for _, batch in log.ledger.batches.iterate(known)]


@given(steps=st.lists(STEP, min_size=5, max_size=40), seed=st.integers(0, 2**32))
@settings(max_examples=40 * SOAK, deadline=None)
def test_power_loss_while_recovering_from_power_loss_loses_nothing(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    random = Random(seed)
    world = World(SimulatedDisk(seed=seed))
    traffic = world.traffic = Traffic(world.start())
    for step in steps:
        world.perform(*step)
    world.disk = world.disk.crash(random)
    for _ in range(3):
        world.disk.lose_power_after(random.randrange(40))
        try:
            traffic.log = world.start()
        except PowerLost:
            world.disk = world.disk.crash(random)
            continue
        world.highest_seen = max(world.highest_seen, world.log.high_watermark)
        world.disk = world.disk.crash(random)
    world.disk.keep_power()
    traffic.log = world.start()
    check_recovered(world, traffic)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.PAGE_CACHE])
def test_what_deleted_segments_tell_survives_an_end_before_their_snapshot(
    durability: Durability,
) -> None:
    """The start offset is at a roll, whose snapshot is not on the disk when the process ends."""
    for point in range(25):
        random = Random(point)
        world = World(SimulatedDisk(seed=point), durability)
        traffic = world.traffic = Traffic(world.start())
        rolled_at_start(world)
        world.disk = world.disk.kill(random)
        # Any later power loss is of no promise without syncs.
        if durability is Durability.FSYNC:
            world.disk.lose_power_after(point)
            with contextlib.suppress(PowerLost):
                world.start()
            world.disk.keep_power()
            world.disk = world.disk.crash(random)
        traffic.log = world.start()
        check_recovered(world, traffic)
        assert set(world.log.producers) == {0, 1, 2}
        assert [each.producer_id for each in world.log.transactions.open_transactions()] == [1]
        names = {name for name in world.disk.list("/data/topic-0") if name.endswith(".log")}
        assert len(names) == len(world.log.ledger.segments.base_offsets) == 1
        world.disk = world.disk.kill(random)
        traffic.log = world.start()
        check_recovered(world, traffic)


def rolled_at_start(world: World) -> None:
    """Write, roll, delete; write, delete all, and roll once more, without a sync since."""
    large = ("plain", 0, 60)
    for step in (("idempotent", 0, 1), large, ("settle", 0, 0), ("delete", 0, 20)):
        world.perform(*step)
    for step in (("idempotent", 2, 2), ("transactional", 1, 1), ("settle", 0, 0)):
        world.perform(*step)
    world.perform("delete", 0, 60)
    assert world.log.log_start_offset == world.log.high_watermark
    start_offset = world.log.log_start_offset
    world.perform(*large)
    assert start_offset in world.log.ledger.segments.base_offsets
    assert start_offset not in snapshot_offsets(world.log.ledger.attachments.names(), SUFFIX)


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("point", range(0, 60, 2))
def test_power_loss_while_retention_deletes(point: int, is_whole: bool, is_beside: bool) -> None:
    """At every step on the disk: what was given up stays gone, nothing above it is lost."""
    random = Random(point)
    for seed in range(4):
        world = World(SimulatedDisk(seed=seed))
        traffic = world.traffic = Traffic(world.start())
        for _ in range(80):
            world.perform("plain", 0, 2)
        world.perform("settle", 0, 0)
        bases = world.log.ledger.segments.base_offsets
        assert len(bases) > 4
        world.disk.lose_power_after(point)
        with contextlib.suppress(PowerLost):
            world.expire(len(bases) if is_whole else 3, is_beside=is_beside)
            world.perform("plain", 0, 1)
            world.perform("settle", 0, 0)
        world.disk = world.disk.crash(random)
        traffic.log = world.start()
        complete_last(traffic, world.log)
        check_recovered(world, traffic)
        assert world.log.log_start_offset in (0, bases[3], world.highest_seen)
        if is_whole and world.log.log_start_offset:
            assert len(world.log.ledger.segments.base_offsets) <= 2


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("point", range(40))
def test_power_loss_while_retention_empties_a_log(point: int, is_beside: bool) -> None:
    """What is on the disk always tells what producers have sent, and where the log ends."""
    for seed in range(8):
        random = Random(seed)
        world = World(SimulatedDisk(seed=seed))
        traffic = world.traffic = Traffic(world.start())
        world.perform("idempotent", 0, 2)
        world.perform("settle", 0, 0)
        world.disk.lose_power_after(point)
        with contextlib.suppress(PowerLost):
            world.expire(1, is_beside=is_beside)
        world.disk.keep_power()
        world.disk = world.disk.crash(random)
        assert [name for name in world.disk.list("/data/topic-0") if name.endswith(".log")]
        traffic.log = world.start()
        check_recovered(world, traffic)
        assert set(world.log.producers) == {0}


def test_power_loss_in_a_stop_forgets_none_of_the_batches_that_may_be_sent_again() -> None:
    for point in range(40):
        world = World(SimulatedDisk(seed=point))
        traffic = world.traffic = Traffic(world.start())
        for _ in range(12):
            world.perform("idempotent", 0, 1)
        world.perform("settle", 0, 0)
        world.disk.lose_power_after(point % 20)
        with contextlib.suppress(PowerLost):
            world.stop()
        world.disk.keep_power()
        world.disk = world.disk.crash(Random(point))
        traffic.log = world.start()
        check_recovered(world, traffic)
