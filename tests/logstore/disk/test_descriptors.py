"""A few descriptors serve the files of many partitions, and readers see no difference."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles
from logstore.partition.log_config import LogConfig
from logstore.segments.file_ledger import FileLedger
from logstore.sync.group_commit import GroupCommit
from tests.logstore.ledgers import open_now
from tests.logstore.simulated_executors import SteppedExecutor

MAX = 16


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskFiles]:
    files = DiskFiles(str(tmp_path), open_max=MAX)
    yield files
    files.close()


def names(tmp_path: Path, count: int) -> list[str]:
    return [str(tmp_path / f"f{number}") for number in range(count)]


def descriptors_of(directory: Path) -> int:
    """Return how many descriptors this process has for files below the directory."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{each}").startswith(f"{directory}/")
        except FileNotFoundError:
            continue  # That of the listing itself.
    return found


def test_more_files_than_descriptors_are_written_and_read(disk: DiskFiles, tmp_path: Path) -> None:
    files = [disk.open(name, create=True) for name in names(tmp_path, 100)]
    for round_ in range(3):
        for number, file in enumerate(files):
            file.write([b"%03d" % number], 3 * round_)
    assert descriptors_of(tmp_path) <= MAX
    for number, file in enumerate(files):
        assert file.read(100, 0) == b"%03d" % number * 3
        assert bytes(file.read_now(9, 0) or b"") == b"%03d" % number * 3
        assert file.size() == 9
        file.sync()
    for file in files:
        file.close()
    assert (descriptors_of(tmp_path), disk.descriptors.open_count) == (0, 0)


def test_a_pipe_and_a_device_are_no_files(disk: DiskFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    for path in (tmp_path / "pipe", tmp_path / "device"):
        with pytest.raises(OSError, match="Not a regular file") as refused:
            disk.open(str(path))
        assert refused.value.filename == str(path)
    assert not descriptors_of(tmp_path)


def test_a_file_that_is_closed_stays_closed(disk: DiskFiles, tmp_path: Path) -> None:
    file = disk.open(names(tmp_path, 1)[0], create=True)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


def test_a_deleted_file_is_readable_for_who_has_it(disk: DiskFiles, tmp_path: Path) -> None:
    kept, *others = names(tmp_path, 50)
    file = disk.open(kept, create=True)
    file.write([b"kept"], 0)
    opened = [disk.open(name, create=True) for name in others]
    disk.unlink(kept)
    for other in opened:
        other.write([b"x"], 0)
    disk.open(kept, create=True).write([b"another"], 0)
    assert file.read(100, 0) == b"kept"


def test_a_replaced_file_stays_what_it_was(disk: DiskFiles, tmp_path: Path) -> None:
    old_name, new_name, *others = names(tmp_path, 50)
    old, new = disk.open(old_name, create=True), disk.open(new_name, create=True)
    old.write([b"old"], 0)
    new.write([b"new"], 0)
    opened = [disk.open(name, create=True) for name in others]
    disk.rename(new_name, old_name)
    for other in opened:
        other.write([b"x"], 0)
    assert (old.read(9, 0), new.read(9, 0)) == (b"old", b"new")


def test_files_of_a_renamed_directory_are_found_again(disk: DiskFiles, tmp_path: Path) -> None:
    disk.make_directory(str(tmp_path / "a"))
    file = disk.open(str(tmp_path / "a" / "f"), create=True)
    file.write([b"v"], 0)
    disk.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    for name in names(tmp_path, 50):
        disk.open(name, create=True).write([b"x"], 0)
    assert file.read(9, 0) == b"v"
    assert file.path == str(tmp_path / "b" / "f")


def test_what_was_let_go_before_its_sync_is_synced_with_everything(
    disk: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    disk.descriptors.sync_all = lambda: synced.append("all")
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append("one"))
    first, *rest = [disk.open(name, create=True) for name in names(tmp_path, 50)]
    first.write([b"x"], 0)
    first.sync()
    first.write([b"x"], 0)
    for other in rest:
        other.write([b"x"], 0)
    first.sync()
    first.sync()
    assert synced == ["one", "all", "one"]


def test_files_are_themselves_whoever_uses_them(disk: DiskFiles, tmp_path: Path) -> None:
    """Threads read while others open and release files: each reads the bytes of its own file."""
    files = [disk.open(name, create=True) for name in names(tmp_path, 60)]
    for number, file in enumerate(files):
        file.write([b"%03d" % number * 20], 0)
    wrong: list[int] = []

    def read(seed: int) -> None:
        drawn = random.Random(seed)
        for _ in range(1500):
            number = drawn.randrange(len(files))
            if files[number].read(60, 0) != b"%03d" % number * 20:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert descriptors_of(tmp_path) <= MAX + len(threads)


def test_a_failed_sync_of_everything_fails_for_everybody(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells one caller, who may not know whose bytes are lost."""
    outcomes = [OSError(errno.EIO, "syncfs")]

    def syncfs(_descriptor: int) -> None:
        if outcomes:
            raise outcomes.pop()

    monkeypatch.setattr(disk, "_syncfs", syncfs)
    for _ in range(2):
        with pytest.raises(OSError, match="syncfs"):
            disk.sync_all()


def test_without_a_sync_of_everything_nothing_unsynced_is_let_go(
    disk: DiskFiles, tmp_path: Path
) -> None:
    disk.descriptors.sync_all = None
    files = [disk.open(name, create=True) for name in names(tmp_path, 50)]
    for file in files:
        file.write([b"x"], 0)
    assert descriptors_of(tmp_path) == 50
    for file in files:
        file.sync()
    disk.open(names(tmp_path, 51)[50], create=True)
    assert descriptors_of(tmp_path) <= MAX


def test_a_file_without_a_descriptor_is_found_while_it_is_renamed(
    disk: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *others = names(tmp_path, 50)
    file = disk.open(name, create=True)
    file.write([b"v"], 0)
    for other in others:
        disk.open(other, create=True).write([b"x"], 0)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(file.read(9, 0)))
    replace = os.replace

    def slow(source: str, target: str) -> None:
        replace(source, target)
        reader.start()
        reader.join(0.1)

    monkeypatch.setattr(os, "replace", slow)
    disk.rename(name, f"{name}.renamed")
    reader.join()
    assert found == [b"v"]


def test_a_file_that_is_opened_while_it_is_deleted_is_readable(
    disk: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *others = names(tmp_path, 50)
    disk.open(name, create=True).write([b"v"], 0)
    files = [disk.open(other, create=True) for other in others]
    opened = []
    unlink = os.unlink

    def slow(path: str) -> None:
        opened.append(disk.open(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", slow)
    disk.unlink(name)
    for _ in range(3):
        for file in files:
            file.write([b"x"], 0)
    assert opened[0].read(9, 0) == b"v"


def test_a_file_that_is_being_closed_does_not_fail_who_deletes_its_name(
    disk: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *others = names(tmp_path, 50)
    twins = [disk.open(name, create=True) for _ in range(2)]
    for other in others:
        disk.open(other, create=True).write([b"x"], 0)
    assert [file.descriptor for file in twins] == [-1, -1]
    closers: list[threading.Thread] = []
    open_file = os.open

    def slow(path: str, flags: int, mode: int = 0o777) -> int:
        """While one of the two gets its descriptor back, both are closed."""
        if path == name and not closers:
            closers.extend(threading.Thread(target=file.close) for file in twins)
            for closer in closers:
                closer.start()
            closers[0].join(0.1)
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", slow)
    disk.unlink(name)
    for closer in closers:
        closer.join()
    assert len(closers) == 2
    assert all(file.is_closed for file in twins)


def test_small_files_that_wait_for_a_sync_take_no_descriptors(
    disk: DiskFiles, tmp_path: Path
) -> None:
    """Retention rewrites the leader epochs after every few segments of a log without writers."""
    group_commit = GroupCommit(
        disk, Durability.FSYNC, on_failure=lambda _: None, executor=SteppedExecutor()
    )
    ledger = FileLedger(disk, str(tmp_path / "t-0"), group_commit, LogConfig())
    open_now(ledger)
    for number in range(10 * MAX):
        ledger.attachments.write("leader-epoch-checkpoint", b"%d" % number, sync=False)
        ledger.attachments.write(f"{number}.state", b"", sync=False)
    assert descriptors_of(tmp_path) <= MAX
