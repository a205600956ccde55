"""Parts of files that are sent without a copy: which there are, and what they hold."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.disk import descriptors
from logstore.disk.descriptors import DiskFile
from logstore.disk.file_range import RANGE_BYTES_MIN
from logstore.disk.files import DiskFiles

DATA = os.urandom(3 * RANGE_BYTES_MIN)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    disk = DiskFiles(str(tmp_path))
    yield disk
    disk.close()


@pytest.fixture
def file(files: DiskFiles, tmp_path: Path) -> DiskFile:
    file = files.open(str(tmp_path / "a"), create=True)
    assert isinstance(file, DiskFile)
    file.write([DATA], 0)
    return file


@pytest.mark.parametrize("position", [0, 1, 4096, RANGE_BYTES_MIN + 77])
def test_a_part_is_what_the_file_has_there(file: DiskFile, position: int) -> None:
    size = RANGE_BYTES_MIN + 1000
    part = file.range_now(size, position)
    assert part is not None and len(part) == size
    assert bytes(part) == DATA[position : position + size]
    assert part.read(999) == DATA[position + 999 : position + size]
    file.close()


def test_little_is_copied_as_ever(file: DiskFile) -> None:
    assert file.range_now(RANGE_BYTES_MIN - 1, 0) is None
    file.close()


def test_there_is_no_part_beyond_the_files_end(file: DiskFile) -> None:
    assert file.range_now(RANGE_BYTES_MIN, len(DATA) - RANGE_BYTES_MIN) is not None
    assert file.range_now(RANGE_BYTES_MIN, len(DATA) - RANGE_BYTES_MIN + 1) is None
    file.close()


def test_there_is_no_part_of_what_the_disk_would_be_waited_for(file: DiskFile) -> None:
    file.truncate(len(DATA) + RANGE_BYTES_MIN)  # A hole has no page in memory.
    assert file.range_now(RANGE_BYTES_MIN, len(DATA) - 4096) is None
    assert file.range_now(RANGE_BYTES_MIN, len(DATA)) is None
    assert file.range_now(RANGE_BYTES_MIN, 0) is not None
    file.close()


def test_a_part_outlives_its_file(file: DiskFile) -> None:
    part = file.range_now(len(DATA), 0)
    os.unlink(file.path)
    file.close()
    assert part is not None and bytes(part) == DATA


def test_a_part_of_a_file_that_was_cut_is_short(file: DiskFile) -> None:
    part = file.range_now(len(DATA), 0)
    file.truncate(1000)
    assert part is not None and bytes(part) == DATA[:1000]
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        assert part.send(sender.fileno(), 1000) == 0
    file.close()


def test_parts_are_bounded_and_give_their_descriptors_back(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "RANGES_MAX", 3)
    before = len(os.listdir("/proc/self/fd"))
    parts = [file.range_now(len(DATA), 0) for _ in range(5)]
    assert [part is None for part in parts] == [False] * 3 + [True] * 2
    assert len(os.listdir("/proc/self/fd")) == before + 3
    parts.clear()
    assert len(os.listdir("/proc/self/fd")) == before
    assert file.range_now(len(DATA), 0) is not None
    file.close()


def test_parts_and_files_have_one_bound_together(tmp_path: Path) -> None:
    disk = DiskFiles(str(tmp_path), open_max=descriptors._OPEN_MIN)
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.open(str(tmp_path / str(number)), create=True) for number in range(12)]
    for file in files:
        file.write([DATA], 0)
        file.sync()
    parts = [files[0].range_now(len(DATA), 0) for _ in range(6)]
    assert [part is None for part in parts] == [False] * 4 + [True] * 2
    files += [disk.open(str(tmp_path / f"more {number}"), create=True) for number in range(12)]
    assert len(os.listdir("/proc/self/fd")) == before + descriptors._OPEN_MIN
    for file in files:
        file.close()
    disk.close()


def test_without_a_descriptor_there_is_no_part(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", refuse)
        assert file.range_now(len(DATA), 0) is None
    assert file.range_now(len(DATA), 0) is not None
    file.close()


def test_a_system_without_mincore_reads(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file._descriptors, "is_resident", None)
    assert file.range_now(len(DATA), 0) is None
    file.close()
