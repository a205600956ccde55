"""A snapshot at the end of a segment: written beside the event loop, and in time all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from logstore.partition import snapshot, snapshot_kafka
from logstore.partition.log import PartitionLog
from logstore.partition.snapshot import decode_snapshot
from logstore.partition.snapshot_kafka import decode_kafka_snapshot
from tests.logstore import simulated_executors
from tests.logstore.journal_process import IDS, Process
from tests.logstore.log_process import NOW_MS
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk


@pytest.fixture(params=[4000, 2], autouse=True)
def parts_of_a_piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and with pieces of one producer."""
    for module in (snapshot, snapshot_kafka):
        monkeypatch.setattr(module, "PARTS_OF_A_PIECE", request.param)


PRODUCERS = range(5, 10)


class WatchedDisk(SimulatedDisk):
    """Knows which syncs the event loop waits for."""

    is_aside = False

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.waited_for: list[str] = []

    def before(self, operation: str) -> None:
        if operation.startswith("sync") and not self.is_aside:
            self.waited_for.append(operation)
        super().before(operation)


def read(disk: SimulatedDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(file.size(), 0)


def append(log: PartitionLog, producer_id: int, *, sequence: int) -> None:
    batch = batch_of(b"v", producer_id=producer_id, epoch=0, sequence=sequence)
    log.append(log.check(batch, NOW_MS))


def rolled(process: Process, *, segments: int = 2) -> PartitionLog:
    """A log with a few producers, whose batches are in the first segment."""
    (log,) = process.start(1)
    for producer_id in PRODUCERS:
        append(log, producer_id, sequence=0)
    process.executor.run()
    while len(log.ledger.segments.base_offsets) < segments:
        process.append(0, b"x" * 100)
    return log


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> WatchedDisk:
    disk = WatchedDisk()

    def aside(work: Callable[[], None]) -> OSError | None:
        disk.is_aside = True
        try:
            work()
        finally:
            disk.is_aside = False
        return None

    monkeypatch.setattr(simulated_executors, "failure_of", aside)
    return disk


def test_the_event_loop_waits_for_no_sync_of_a_roll(disk: WatchedDisk) -> None:
    process = Process(disk)
    log = rolled(process)
    disk.waited_for.clear()
    process.executor.run()
    assert disk.waited_for == []
    assert f"{log.ledger.segments.base_offsets[1]:020d}.state" in disk.list("/data/t-0")


def test_a_start_that_moves_waits_for_no_sync_of_what_ended_since(disk: WatchedDisk) -> None:
    """The next snapshot is always under way in a log that gets a segment a second."""
    process = Process(disk)
    log = rolled(process)
    while log.high_watermark < log.log_end_offset:
        process.executor.step()
    while len(log.ledger.segments.base_offsets) < 3:
        process.append(0, b"x" * 100)
    while not log._snapshots.written[0]:
        process.executor.step()
    bases = log.ledger.segments.base_offsets
    process.persist_start(log, bases[1])
    assert bases[2] not in log._snapshots.written[0]
    disk.waited_for.clear()
    log.advance_start(bases[1])
    assert disk.waited_for == []
    process.executor.run()
    assert bases[2] in log._snapshots.written[0]


def test_a_start_that_moves_waits_for_one_snapshot_however_many_segments_ended(
    disk: WatchedDisk,
) -> None:
    process = Process(disk)
    log = rolled(process, segments=30)
    while log.high_watermark < log.log_end_offset:
        process.executor.step()
    bases = log.ledger.segments.base_offsets
    process.persist_start(log, bases[3])
    disk.waited_for.clear()
    log.advance_start(bases[3])
    # The file and its name: of the snapshot that was being written, and of one for all others.
    assert len(disk.waited_for) <= 4
    process.executor.run()
    kafkas = [name for name in disk.list("/data/t-0") if name.endswith(".snapshot")]
    assert kafkas == [f"{base:020d}.snapshot" for base in bases[3:]]


def test_segments_may_end_by_the_hundred_while_a_snapshot_is_written() -> None:
    """Each file was written from within the end of the one before it: too deep a recursion."""
    process = Process(disk := SimulatedDisk())
    log = rolled(process, segments=500)
    process.executor.run()
    assert not process.failures
    kafkas = [name for name in disk.list("/data/t-0") if name.endswith(".snapshot")]
    assert kafkas == [f"{base:020d}.snapshot" for base in log.ledger.segments.base_offsets[1:]]


@pytest.mark.parametrize("seed", range(40))
def test_a_segment_goes_after_the_snapshot_that_tells_of_it_is_durable(seed: int) -> None:
    process = Process(disk := SimulatedDisk(seed=seed))
    log = rolled(process)
    # As soon as the log may begin there: the snapshot's own syncs are still to come.
    while log.high_watermark < log.log_end_offset:
        process.executor.step()
    start = log.ledger.segments.base_offsets[1]
    process.persist_start(log, start)
    log.advance_start(start)
    process.disk = disk.crash(Random(seed))
    (again,) = process.start(1)
    assert again.log_start_offset == start
    assert set(again.producers) == set(PRODUCERS)


def test_a_snapshot_is_written_piece_by_piece_and_tells_of_its_own_offset() -> None:
    process = Process(disk := SimulatedDisk())
    log = rolled(process)
    end_offset = log.ledger.segments.base_offsets[1]
    name = f"/data/t-0/{end_offset:020d}"
    expected = {each: producer.copied() for each, producer in log.producers.items()}
    steps = 0
    while not disk.exists(f"{name}.snapshot"):
        steps += 1
        for producer_id in PRODUCERS:
            append(log, producer_id, sequence=steps)
        process.executor.step()
    if len(PRODUCERS) > snapshot.PARTS_OF_A_PIECE:
        assert steps > 2 * len(PRODUCERS)
    own, kafkas = (read(disk, name + suffix) for suffix in (".state", ".snapshot"))
    assert decode_snapshot(own).state.producers == expected
    of_kafka = decode_kafka_snapshot(kafkas, end_offset, 0).producers
    assert {each: state.last_sequence for each, state in of_kafka.items()} == dict.fromkeys(
        PRODUCERS, 0
    )


@pytest.mark.parametrize("steps", range(30))
def test_a_snapshot_under_way_does_not_get_into_the_next_partition_of_the_name(steps: int) -> None:
    process = Process(disk := SimulatedDisk())
    log = rolled(process)
    for _ in range(steps):
        process.executor.step()
    asyncio.run(process.directory.delete([log]))
    process.logs = [process.directory.open("t", 0, IDS[1])]
    process.append_all(b"of the second")
    assert not process.failures
    assert not [name for name in disk.list("/data/t-0") if ".state" in name]
