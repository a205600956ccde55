"""The passes in a process of their own: the same bytes, and nothing wrong however it ends."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from logstore.cleaner.batches import Pause
from logstore.cleaner.passes import MapPlan, Place
from logstore.cleaner.process import CannotStart, ProcessPasses, WorkerEnded
from logstore.cleaner.run import Cleaned, Elsewhere
from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles
from logstore.partition.log_config import LogConfig
from logstore.segments.ledger import Replacement, SealedSegment
from logstore.sync.group_commit import GroupCommit
from tests.logstore.compaction import KeyedTraffic, check_compacted, clean
from tests.logstore.log_process import Timers, at_once
from tests.logstore.simulated_executors import SteppedExecutor
from wire.errors import WireError
from wire.records import Compression

CONFIG = LogConfig(
    segment_bytes=6_000,
    index_interval_bytes=200,
    delete_retention_ms=25,
    cleanup_policy=frozenset({"compact"}),
)
PLAN = MapPlan(1000, 0.9, 0, 100, ())
KEYS = [b"%d" % number for number in range(40)]


def no_pause(_: int) -> None:
    """Take no rest."""


class World:
    """One compacted log of random transactions, on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path / "topic-0"
        self.files = DiskFiles(str(path))
        self.executor = SteppedExecutor()
        commit = GroupCommit(
            self.files, Durability.PAGE_CACHE, on_failure=_raise, executor=self.executor
        )
        self.directory = LogDirectory(
            str(path),
            self.files,
            commit,
            CONFIG,
            steady_ms=lambda: 1_000,
            call_later=Timers().call_later,
            aside=at_once,
        )
        self.log = self.directory.open("topic", 0)
        self.traffic = KeyedTraffic(self.log)

    def fill(self, seed: int) -> None:
        random, traffic = Random(seed), self.traffic
        for number in range(300):
            producer = random.randrange(3)
            traffic.write(
                producer,
                random.sample(KEYS, random.randrange(1, 12)),
                transactional=random.random() < 0.5,
                tombstones=random.random() < 0.1,
                compression=random.choice(list(Compression)),
            )
            if number % 5 == 0:
                traffic.end(producer, commit=random.random() < 0.7)
        for producer in range(3):
            traffic.end(producer, commit=True)
        # The active segment is not cleaned.
        for _ in range(40):
            traffic.write(0, KEYS[:10], transactional=False)
        self.executor.run()

    def clean(self, elsewhere: Elsewhere | None, pause: Pause = no_pause) -> Cleaned | None:
        now_ms = self.traffic.now_ms
        return clean(self.log, now_ms, self.executor.run, None, elsewhere, pause)

    def contents(self) -> dict[str, bytes]:
        """The bytes of all files of all segments."""
        self.executor.run()
        names = [path for path in self.path.iterdir() if not path.name.endswith(".deleted")]
        return {path.name: path.read_bytes() for path in names if path.name[0].isdigit()}

    def check(self) -> None:
        check_compacted(self.log, self.traffic.sent)


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    worlds: list[World] = []

    def make(name: str) -> World:
        world = World(tmp_path / name)
        world.fill(seed=7)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.log.close()
        world.files.close()


def test_the_same_bytes_as_in_a_thread(make_world: Callable[[str], World]) -> None:
    here, there = make_world("here"), make_world("there")
    before = here.contents()
    assert before == there.contents()
    assert here.clean(None) == there.clean(ProcessPasses)
    assert here.contents() == there.contents() != before
    # Once more: tombstones and markers have delete horizons now.
    for world in (here, there):
        world.traffic.now_ms += 100
        for _ in range(40):
            world.traffic.write(0, KEYS[:10], transactional=False)
        world.executor.run()
    assert here.clean(None) == there.clean(ProcessPasses)
    assert here.contents() == there.contents()
    there.check()


class Disturbed(ProcessPasses):
    """Passes whose process meets something when it begins to write the second group."""

    def __init__(self, plan: MapPlan, pause: Pause) -> None:
        super().__init__(plan, pause)
        self.groups = 0

    def disturb(self) -> None:
        """Do it."""

    def clean_segment(
        self, place: Place, source: SealedSegment, target: Replacement, *, is_last: bool
    ) -> tuple[bool, int]:
        self.groups += 1
        if self.groups == 2:
            self.disturb()
        return super().clean_segment(place, source, target, is_last=is_last)


class Killed(Disturbed):
    def disturb(self) -> None:
        self.process.kill()


class Stopped(Disturbed):
    def disturb(self) -> None:
        self.silence_s = 0.3
        self.process.send_signal(signal.SIGSTOP)


class OnAFullDisk(Disturbed):
    def disturb(self) -> None:
        # As a full disk, but for this process alone: the write fails.
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize(
    ("passes", "error"), [(Killed, WorkerEnded), (Stopped, WorkerEnded), (OnAFullDisk, OSError)]
)
def test_a_process_that_fails_leaves_the_log_to_the_next(
    make_world: Callable[[str], World], passes: type[Disturbed], error: type[Exception]
) -> None:
    world, whole = make_world("a"), make_world("b")
    started: list[ProcessPasses] = []

    def start(plan: MapPlan, pause: Pause) -> ProcessPasses:
        started.append(passes(plan, pause))
        return started[-1]

    with pytest.raises(error):
        world.clean(start)
    assert started[0].process.returncode is not None
    assert not list(world.path.glob("*.cleaned")) and not list(world.path.glob("*.swap"))
    assert world.log.first_dirty_offset == 0
    world.check()
    world.clean(ProcessPasses)
    whole.clean(None)
    # The first run has cleaned a part, so the segments may differ. The records do not.
    assert world.log.first_dirty_offset == whole.log.first_dirty_offset
    world.check()


def test_a_damaged_log_is_reported_by_the_process(make_world: Callable[[str], World]) -> None:
    world = make_world("a")
    path = world.path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff\xff\xff\xff")
    before = world.contents()
    with pytest.raises(WireError, match="CRC"):
        world.clean(ProcessPasses)
    assert world.contents() == before


def test_the_pace_of_the_broker_holds(make_world: Callable[[str], World]) -> None:
    """All bytes are accounted for, and what the pace raises ends the run."""
    world = make_world("a")
    paces: list[int] = []
    done = world.clean(ProcessPasses, paces.append)
    assert done is not None and done.written_bytes < done.mapped_bytes == done.read_bytes
    assert sum(paces) == done.mapped_bytes + done.read_bytes + done.written_bytes

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    other = make_world("b")
    before = other.contents()
    with pytest.raises(OSError, match="No space"):
        other.clean(ProcessPasses, full)
    assert other.contents() == before


def test_the_process_has_nothing_of_the_brokers() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    passes = ProcessPasses(PLAN, no_pause)
    try:
        names = os.listdir(f"/proc/{passes.process.pid}/fd")
        # Its socket, nothing, and the standard error.
        assert sorted(names) == ["0", "1", "2"]
    finally:
        passes.close()
        os.close(read_end)
        os.close(write_end)
    assert passes.process.returncode == -signal.SIGKILL


_BROKER = """
import sys, time
from logstore.cleaner.passes import MapPlan
from logstore.cleaner.process import ProcessPasses
passes = ProcessPasses(MapPlan(1000, 0.9, 0, 100, ()), lambda _: None)
print(passes.process.pid, flush=True)
time.sleep(60)
"""


def test_the_process_ends_with_a_killed_broker() -> None:
    broker = subprocess.Popen([sys.executable, "-c", _BROKER], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    with broker:
        process = int(broker.stdout.readline())
        assert Path(f"/proc/{process}").exists()
        broker.kill()
    deadline = time.monotonic() + 30
    while _is_running(process):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.01)


def _is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # Its parent may not have looked yet.


@pytest.mark.parametrize("interpreter", ["", "/does/not/exist", "/bin/false"])
def test_where_no_process_starts(monkeypatch: pytest.MonkeyPatch, interpreter: str) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(CannotStart):
        ProcessPasses(PLAN, no_pause)
