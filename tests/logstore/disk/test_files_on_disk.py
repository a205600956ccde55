"""Real files: whole writes, reads that do not wait, pins, the lock, syncfs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logstore.disk.files import DiskFiles, StorageFailure


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    disk = DiskFiles(str(tmp_path))
    yield disk
    disk.close()


def test_buffers_are_written_one_behind_the_other(files: DiskFiles, tmp_path: Path) -> None:
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"abc"], 0)
    file.write([b"DE", memoryview(b"FG"), bytearray(b"H")], 2)
    assert file.read(100, 0) == b"abDEFGH"
    assert file.read(3, 1) == b"bDE"
    assert file.read(3, 7) == b""
    assert file.size() == 7
    file.truncate(2)
    assert file.read(100, 0) == b"ab"
    file.sync()
    file.close()


def test_a_short_write_goes_on_where_it_stopped(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def one_byte(descriptor: int, data: bytes, position: int) -> int:
        return pwrite(descriptor, data[:1], position)

    def one_buffer(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        return pwrite(descriptor, buffers[0], position)

    monkeypatch.setattr(os, "pwrite", one_byte)
    monkeypatch.setattr(os, "pwritev", one_buffer)
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"abc"], 0)
    file.write([b"de", b"f", b"gh"], 3)
    assert file.read(100, 0) == b"abcdefgh"
    file.close()


def test_more_buffers_than_the_system_takes_at_once(files: DiskFiles, tmp_path: Path) -> None:
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"%d" % (i % 10) for i in range(3000)], 0)
    assert file.read(4000, 0) == b"0123456789" * 300
    file.close()


def test_read_now_returns_what_is_in_memory(files: DiskFiles, tmp_path: Path) -> None:
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"x" * 10_000], 0)
    assert file.read_now(4000, 100) == b"x" * 4000
    assert file.read_now(4000, 9000) == b"x" * 1000
    assert file.read_now(10, 10_000) == b""
    file.close()


def test_read_now_is_none_where_the_disk_would_be_waited_for(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"x" * 10_000], 0)

    def only_one_page(
        _descriptor: int, buffers: Sequence[bytearray], _position: int, flags: int
    ) -> int:
        assert flags == os.RWF_NOWAIT
        return min(len(buffers[0]), 4096)

    monkeypatch.setattr(os, "preadv", only_one_page)
    assert file.read_now(4096, 0) is not None
    assert file.read_now(5000, 0) is None

    def nothing(*_arguments: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "")

    monkeypatch.setattr(os, "preadv", nothing)
    assert file.read_now(5000, 0) is None
    file.close()


def test_a_file_system_that_cannot_read_without_waiting_is_asked_once(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unsupported(*_arguments: object) -> int:
        asked.append(1)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "preadv", unsupported)
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"abc"], 0)
    assert [file.read_now(3, 0), file.read_now(3, 0)] == [None, None]
    assert len(asked) == 1
    assert file.read(3, 0) == b"abc"
    file.close()


def test_a_pinned_file_is_closed_by_its_last_user(files: DiskFiles, tmp_path: Path) -> None:
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"x"], 0)
    file.pin()
    file.pin()
    file.close()
    files.unlink(str(tmp_path / "a"))
    file.unpin()
    assert file.read(1, 0) == b"x"
    file.unpin()
    with pytest.raises(OSError):
        file.read(1, 0)


def test_a_missing_file_is_made_only_when_asked(files: DiskFiles, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "missing"))
    assert not files.exists(str(tmp_path / "missing"))


def test_names_are_made_renamed_listed_and_removed(files: DiskFiles, tmp_path: Path) -> None:
    root = str(tmp_path)
    files.make_directory(f"{root}/x/y")
    files.make_directory(f"{root}/x/y")
    files.open(f"{root}/x/y/b", create=True).close()
    files.open(f"{root}/x/y/a", create=True).close()
    assert files.list(f"{root}/x/y") == ["a", "b"]
    files.rename(f"{root}/x/y/a", f"{root}/x/y/b")
    assert files.list(f"{root}/x/y") == ["b"]
    files.sync_directory(f"{root}/x/y")
    files.unlink(f"{root}/x/y/b")
    files.remove_directory(f"{root}/x/y")
    assert files.list(f"{root}/x") == []
    with pytest.raises(FileNotFoundError):
        files.list(f"{root}/z")


def test_the_whole_file_system_can_be_synced_here(files: DiskFiles) -> None:
    assert files.can_sync_all
    files.sync_all()


def test_a_lock_keeps_others_out_until_it_is_released(files: DiskFiles, tmp_path: Path) -> None:
    release = files.lock(str(tmp_path / ".lock"))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path / ".lock"))
    release()
    files.lock(str(tmp_path / ".lock"))()


def test_there_is_no_room_in_a_deleted_directory(tmp_path: Path) -> None:
    disk = DiskFiles(str(tmp_path / "data"))
    assert disk.free_bytes() > 0
    (tmp_path / "data").rename(tmp_path / "moved")
    assert disk.free_bytes() > 0
    (tmp_path / "moved").rmdir()
    with pytest.raises(StorageFailure, match="deleted"):
        disk.free_bytes()
    disk.close()


def test_a_file_system_that_counts_no_links_of_directories_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat = os.fstat

    def without_links(descriptor: int) -> os.stat_result:
        # st_nlink is the fourth field.
        found = list(fstat(descriptor))
        return os.stat_result((*found[:3], 0, *found[4:]))

    monkeypatch.setattr(os, "fstat", without_links)
    path = tmp_path / "data"
    disk = DiskFiles(str(path))
    assert disk.free_bytes() > 0
    path.rmdir()
    for _ in range(2):
        with pytest.raises(StorageFailure, match="deleted"):
            disk.free_bytes()
        # Another directory of that name has nothing of what was in this one.
        path.mkdir(exist_ok=True)
    disk.close()
