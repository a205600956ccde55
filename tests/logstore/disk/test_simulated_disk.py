"""The simulated disk itself: it keeps what was synced, and loses in every way what was not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from tests.logstore.simulated_disk import PowerLost, SimulatedDisk


def outcomes(prepare: Callable[[SimulatedDisk], None], path: str, runs: int = 300) -> set[bytes]:
    """All that is found at `path` after many losses of power."""
    found = set()
    for seed in range(runs):
        disk = SimulatedDisk(seed=seed)
        prepare(disk)
        after = disk.crash(Random(seed))
        found.add(content(after, path) if after.exists(path) else b"(absent)")
    return found


def content(disk: SimulatedDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(file.size(), 0)


def test_what_is_synced_with_its_name_stays() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        file = disk.open("/a", create=True)
        file.write([b"abc", b"def"], 0)
        file.sync()
        disk.sync_directory("/")

    assert outcomes(prepare, "/a") == {b"abcdef"}


def test_a_synced_file_without_a_synced_name_may_be_absent() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        file = disk.open("/a", create=True)
        file.write([b"abc"], 0)
        file.sync()

    assert outcomes(prepare, "/a") == {b"abc", b"(absent)"}


def test_unsynced_writes_survive_in_any_combination_and_torn() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        file = disk.open("/a", create=True)
        disk.sync_directory("/")
        file.write([b"ab"], 0)
        file.write([b"cd"], 2)

    found = outcomes(prepare, "/a", 1000)
    assert {b"", b"ab", b"abcd", b"\0\0cd", b"a", b"abc"} <= found
    assert all(len(data) <= 4 for data in found)


def test_a_truncation_may_be_lost_and_a_later_write_not() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        file = disk.open("/a", create=True)
        file.write([b"abcdef"], 0)
        file.sync()
        disk.sync_directory("/")
        file.truncate(2)
        file.write([b"XY"], 2)

    assert {b"abcdef", b"ab", b"abXY", b"abXYef"} <= outcomes(prepare, "/a")


def test_a_rename_is_atomic() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        for name, data in (("/a", b"old"), ("/b", b"new")):
            file = disk.open(name, create=True)
            file.write([data], 0)
            file.sync()
        disk.sync_directory("/")
        disk.rename("/b", "/a")

    assert outcomes(prepare, "/a") == {b"old", b"new"}


def test_a_rename_between_directories_is_atomic_and_synced_by_either() -> None:
    for seed in range(50):
        disk = SimulatedDisk()
        disk.make_directory("/x")
        disk.make_directory("/y")
        disk.open("/x/a", create=True)
        disk.sync_all()
        disk.rename("/x/a", "/y/a")
        after = disk.crash(Random(seed))
        assert after.exists("/x/a") != after.exists("/y/a")
        disk.sync_directory("/x")
        assert disk.crash(Random(seed)).exists("/y/a")


def test_unlinked_names_may_come_back() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.open("/a", create=True)
        disk.sync_directory("/")
        disk.unlink("/a")

    assert outcomes(prepare, "/a") == {b"", b"(absent)"}


def test_what_is_in_an_unsynced_directory_is_lost_with_it() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/x/y")
    file = disk.open("/x/y/a", create=True)
    file.sync()
    disk.sync_directory("/x/y")
    after = [disk.crash(Random(seed)) for seed in range(50)]
    assert {d.exists("/x") for d in after} == {True, False}
    assert all(d.exists("/x/y/a") for d in after if d.exists("/x/y"))


def test_the_end_of_the_process_loses_nothing_and_syncs_nothing() -> None:
    disk = SimulatedDisk()
    file = disk.open("/a", create=True)
    file.write([b"abc"], 0)
    killed = disk.kill(Random(0))
    assert content(killed, "/a") == b"abc"
    assert not all(killed.crash(Random(seed)).exists("/a") for seed in range(50))


def test_pages_of_a_failed_sync_are_clean_and_absent() -> None:
    lost = 0
    for seed in range(50):
        disk = SimulatedDisk(seed=seed)
        file = disk.open("/a", create=True)
        disk.sync_directory("/")
        file.write([b"abc"], 0)
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk = disk.kill(Random(seed))
        file = disk.open("/a")
        assert file.read(3, 0) == b"abc", "still seen"
        file.sync()
        lost += content(disk.crash(Random(seed)), "/a") != b"abc"
        file.write([b"abc"], 0)
        file.sync()
        assert content(disk.crash(Random(seed)), "/a") == b"abc", "written again it is there"
    assert 0 < lost < 50


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk()
    disk.space_left = 4
    file = disk.open("/a", create=True)
    file.write([b"abc"], 0)
    with pytest.raises(OSError, match="No space") as failure:
        file.write([b"def"], 3)
    assert failure.value.errno == errno.ENOSPC
    assert file.size() == 4
    file.write([b"xyz"], 0)


def test_power_is_lost_at_the_operation_asked_for() -> None:
    disk = SimulatedDisk()
    file = disk.open("/a", create=True)
    disk.lose_power_after(1)
    file.write([b"abc"], 0)
    with pytest.raises(PowerLost):
        file.sync()
    with pytest.raises(PowerLost):
        disk.sync_all()


def test_failures_come_when_and_where_they_were_asked_for() -> None:
    disk = SimulatedDisk()
    disk.fail("name", errno.EACCES, after=1)
    disk.open("/a", create=True)
    with pytest.raises(PermissionError):
        disk.open("/b", create=True)
    disk.open("/b", create=True)


def test_a_lock_is_gone_with_its_process() -> None:
    disk = SimulatedDisk()
    disk.lock("/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/.lock")
    disk.kill(Random(0)).lock("/.lock")()
