"""Compaction of random transactional histories, with the power lost in between.

The promises: a reader from the log's start finds the same latest committed value of every key
before and after, at its offset; what was aborted never comes back; the state is that of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.cleaner.run import OffsetMapLimits, Overtaken
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import PartitionDeleted
from logstore.segments.segment_reads import scan
from tests.logstore.compaction import KeyedTraffic, check_compacted, check_replay, clean, perform
from tests.logstore.log_process import LogProcess
from tests.logstore.partitions import expire
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.soak import SOAK
from wire.errors import WireError
from wire.records import Compression

CONFIG = LogConfig(
    segment_bytes=1_200,
    index_interval_bytes=200,
    segment_index_bytes=800,
    snapshot_interval_bytes=700,
    delete_retention_ms=25,
    cleanup_policy=frozenset({"compact"}),
)
KEYS = [b"a", b"b", b"c", b"d", b"e"]
#: A map of few keys, so that a run covers but a part of the log.
SMALL_MAP = OffsetMapLimits(buffer_bytes=24 * 6, load_factor=0.5)

WRITE = st.tuples(
    st.sampled_from(["plain", "transactional", "transactional", "tombstone"]),
    st.integers(0, 2),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
    st.sampled_from(Compression),
)
OTHER = st.tuples(
    st.sampled_from(
        ["commit", "commit", "abort", "settle", "settle", "clean", "clean a part", "trim"]
    ),
    st.integers(0, 2),
    st.builds(list[bytes]),
    st.just(Compression.NONE),
)
STEP = st.one_of(WRITE, WRITE, OTHER)
Step = tuple[str, int, list[bytes], Compression]


class World(LogProcess):
    """One compacted partition on a simulated disk, and the process that has it open."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.highest_seen = 0
        self.deleted_before = 0
        self.traffic = KeyedTraffic(self.start())

    def start(self) -> PartitionLog:
        self.begin(self.disk, CONFIG)
        self.log = self.directory.open("topic", 0)
        return self.log

    def restart(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.traffic.log = self.start()

    def perform(self, step: Step) -> None:
        operation, producer, keys, compression = step
        traffic = self.traffic
        if operation in ("plain", "transactional", "tombstone"):
            traffic.write(
                producer,
                keys,
                transactional=operation == "transactional",
                tombstones=operation == "tombstone",
                compression=compression,
            )
        elif operation in ("commit", "abort"):
            traffic.end(producer, commit=operation == "commit")
        elif operation == "settle":
            self.executor.run()
        elif operation == "trim":
            self.trim()
        else:
            limits = SMALL_MAP if operation == "clean a part" else None
            clean(self.log, traffic.now_ms, self.executor.run, limits)
        self.highest_seen = max(self.highest_seen, self.log.high_watermark)

    def trim(self) -> None:
        """Retention beside compaction: the first segment goes."""
        log = self.log
        ends = [facts.end_offset for facts in log.ledger.segments.facts()]
        if len(ends) > 1 and log.log_start_offset < ends[0] <= log.last_stable_offset:
            self.persist_start(log, ends[0])
            self.deleted_before = ends[0]
            expire(log, ends[0])

    def check(self) -> None:
        log = self.log
        assert not self.failures
        kept = {
            offset: record
            for offset, record in self.traffic.sent.items()
            if offset >= log.log_start_offset
        }
        check_compacted(log, kept)
        if log.log_start_offset == 0:
            # What a trim has taken, only snapshots tell of.
            check_replay(log, self.traffic.now_ms)

    def check_recovered(self) -> None:
        log = self.log
        assert log.log_end_offset == log.high_watermark >= self.highest_seen
        assert log.log_start_offset >= self.deleted_before
        names = self.disk.list("/data/topic-0") if self.disk.exists("/data/topic-0") else []
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        self.traffic.recovered()
        self.executor.run()
        self.check()


@given(
    steps=st.lists(STEP, min_size=10, max_size=80),
    endings=st.lists(st.sampled_from(["power", "kill", "clean"]), min_size=1, max_size=3),
    points=st.lists(st.integers(0, 400), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60 * SOAK, deadline=None)
def test_compaction_keeps_the_latest_committed_values_through_crashes(
    steps: list[Step], endings: list[str], points: list[int], seed: int
) -> None:
    random = Random(seed)
    world = World(SimulatedDisk(seed=seed))
    for ending, point in zip(endings, points, strict=False):
        if ending == "power":
            world.disk.lose_power_after(point)
        try:
            for step in [*steps, ("settle", 0, [], Compression.NONE)]:
                world.perform(step)
                if step[0].startswith("clean"):
                    world.check()
            if ending == "clean":
                before = world.log.state
                world.stop()
        except PowerLost:
            pass
        if ending == "clean":
            world.restart(world.disk)
            assert world.log.state == before
        elif ending == "power":
            world.restart(world.disk.crash(random))
        else:
            world.restart(world.disk.kill(random))
        world.check_recovered()
        world.highest_seen = world.log.high_watermark


def filled(seed: int) -> World:
    """A world of some segments, nothing clean yet."""
    world = World(SimulatedDisk(seed=seed))
    fill(world, 30)
    assert len(world.log.ledger.segments.base_offsets) > 4
    return world


def fill(world: World, transactions: int) -> None:
    for number in range(transactions):
        producer = number % 3
        world.traffic.write(producer, [KEYS[number % 5], b"x"], transactional=True)
        world.traffic.write(producer, [KEYS[number % 4]], transactional=True)
        world.traffic.end(producer, commit=number % 4 != 0)
    world.executor.run()
    world.highest_seen = world.log.high_watermark


@pytest.mark.parametrize("is_merging", [False, True])
@pytest.mark.parametrize("first_point", range(0, 120, 8))
def test_power_loss_at_every_step_of_a_swap(first_point: int, is_merging: bool) -> None:
    for point in range(first_point, first_point + 8):
        random = Random(point)
        world = filled(point)
        if is_merging:
            # What is left of these segments becomes one.
            clean(world.log, world.traffic.now_ms, world.executor.run)
            fill(world, 8)
            count = len(world.log.ledger.segments.base_offsets)
        world.disk.lose_power_after(point)
        with contextlib.suppress(PowerLost):
            clean(world.log, world.traffic.now_ms, world.executor.run)
            world.disk.keep_power()
            if is_merging:
                assert len(world.log.ledger.segments.base_offsets) < count
            world.check()
        world.restart(world.disk.crash(random))
        world.check_recovered()
        clean(world.log, world.traffic.now_ms + 100, world.executor.run)
        world.check()


@pytest.mark.parametrize("ending", ["trim", "delete", "read"])
def test_whatever_happens_in_between_leaves_no_file_behind(ending: str) -> None:
    """At every step of a run: segments are trimmed, the topic is deleted, or just read."""
    for step in range(0, 50, 1 if SOAK > 1 else 4):
        world = filled(step)
        disk, steps = world.disk, 0
        before = disk.open_files
        held = disk.open("/data/topic-0/00000000000000000000.log")
        content = held.read(held.size(), 0)

        def in_between(world: World = world, step: int = step) -> None:
            nonlocal steps
            world.executor.run()
            steps += 1
            if steps == step and ending == "trim":
                world.trim()
            elif steps == step and ending == "delete":
                perform(world.directory.delete([world.log]))
            elif not world.log.is_gone:
                world.check()

        with contextlib.suppress(Overtaken, PartitionDeleted, FileNotFoundError):
            clean(world.log, world.traffic.now_ms, in_between)
        assert held.read(held.size(), 0) == content, "a reader has what it had"
        held.close()
        if ending == "delete":
            assert world.log.is_gone is (steps >= step > 0)
        if world.log.is_gone:
            assert not disk.exists("/data/topic-0")
            continue
        # The log's own files, which stay open when they were read.
        assert disk.open_files <= before + len(world.log.ledger.segments.base_offsets)
        world.check()
        world.stop()
        world.restart(disk)
        world.check_recovered()


def test_a_clean_stop_in_the_middle_of_a_run_leaves_nothing_to_come_back() -> None:
    """What is renamed `.swap` by then would take the place of segments after a later crash."""
    for step in range(1, 30):
        world = filled(1)
        steps = 0

        def stopping(world: World = world, step: int = step) -> None:
            nonlocal steps
            world.executor.run()
            steps += 1
            if steps == step:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            clean(world.log, world.traffic.now_ms, stopping)
        world.stop()
        world.restart(world.disk)
        world.check_recovered()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("at", "damage"),
    [
        *((0, struct.pack(">q", base_offset)) for base_offset in (1 << 40, 0, -1)),
        *((8, struct.pack(">i", length)) for length in (0, 50, 1 << 20, -1)),
    ],
)
def test_what_no_crc_protects_is_not_believed(at: int, damage: bytes, number: int) -> None:
    """A batch's offset and its length: records behind it would go, or earlier ones for it."""
    world = filled(1)
    path = f"/data/topic-0/{world.log.ledger.segments.base_offsets[1]:020d}.log"
    file = world.disk.open(path)
    positions = [at for at, _, _ in scan(file, 0, file.size(), whole=False)]
    file.write((damage,), positions[number] + at)
    before = file.read(file.size(), 0)
    with pytest.raises(WireError):
        clean(world.log, world.traffic.now_ms, world.executor.run)
    assert file.read(file.size(), 0) == before
    assert world.disk.exists(path)
    file.close()
