"""A repair that loses power at any step: another repair, and a start, go on from what is left."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from logstore.disk.durability import Durability
from logstore.partition.log_config import LogConfig
from logstore.partition.mending import SET_ASIDE
from logstore.segments.findings import Finding, Remedy
from magnetar.checking.directory_check import DirectoryCheck
from magnetar.checking.repair import Repair
from tests.logstore.log_process import LogProcess
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.magnetar.checking.damages import DAMAGES, make

#: One for each remedy that changes a file.
DAMAGED = (
    "a sector",
    "a lost tail",
    "an index entry",
    "no aborts",
    "a snapshot",
    "wrong epochs",
    "torn starts",
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one damage for each remedy."""
    path = tmp_path_factory.mktemp("damaged") / "data"
    make(path)
    for damage in DAMAGES:
        if damage.name in DAMAGED:
            damage.perform(path)
    return path


def loaded(path: Path) -> SimulatedDisk:
    """The same directory on a simulated disk, without the catalog, which SQLite reads by itself."""
    disk = SimulatedDisk()
    disk.make_directory("/data")
    for each in sorted(path.rglob("*")):
        name = f"/data/{each.relative_to(path)}"
        if each.is_dir():
            disk.make_directory(name)
        elif not each.name.startswith("catalog"):
            file = disk.open(name, create=True)
            if data := each.read_bytes():
                file.write((data,), 0)
            file.close()
    disk.sync_all()
    return disk


def repair(disk: SimulatedDisk) -> list[Finding]:
    return Repair(disk, "/data", on_read=lambda _: None, tell=lambda _: None).run()


def left(disk: SimulatedDisk) -> list[Finding]:
    found = DirectoryCheck(disk, "/data", on_read=lambda _: None).findings()
    return [each for each in found if each.remedy is not Remedy.NONE]


def batches(disk: SimulatedDisk) -> dict[str, bytes]:
    """The contents of all segments."""
    found = {}
    for name in disk.list("/data/orders-0"):
        if name.endswith(".log"):
            file = disk.open(f"/data/orders-0/{name}")
            found[name] = file.read(file.size(), 0)
            file.close()
    return found


def end_after_start(disk: SimulatedDisk) -> int:
    process = LogProcess()
    process.begin(disk, LogConfig(), Durability.FSYNC)
    end_offset = process.directory.open("orders", 0).log_end_offset
    process.directory.abandon()
    return end_offset


def test_power_is_lost_at_every_step_of_a_repair(damaged: Path) -> None:
    undisturbed = loaded(damaged)
    before = undisturbed.operations
    assert repair(undisturbed) == []
    steps = undisturbed.operations - before
    expected, end_offset = batches(undisturbed), end_after_start(undisturbed)
    assert steps > 40
    for step in range(0, steps, 3):
        disk = loaded(damaged)
        disk.lose_power_after(step)
        with pytest.raises(PowerLost):
            repair(disk)
        after = disk.crash(Random(step))
        started = disk.crash(Random(step))
        assert repair(after) == []
        assert left(after) == []
        assert batches(after) == expected
        assert end_after_start(after) == end_offset
        # A start that comes before the repair: what is damaged within the log stays for later.
        assert end_after_start(started) <= end_offset


def test_nothing_is_deleted(damaged: Path) -> None:
    disk = loaded(damaged)
    assert repair(disk) == []
    file = disk.open(f"/data/{SET_ASIDE}/list.txt")
    listed = file.read(file.size(), 0).decode().splitlines()
    file.close()
    for line in listed:
        original, _, kept = line.partition(": ")[0].partition(" -> ")
        if not (damaged / original).exists():
            continue  # Made by an earlier step of the same repair.
        assert disk.exists(f"/data/{kept}")
