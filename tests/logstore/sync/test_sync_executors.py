"""Syncs beside the event loop: by the kernel where it can, else by a thread; how each has ended."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.disk.files import DiskFiles
from logstore.disk.linux import KernelSync, KernelSyncUnavailable
from logstore.sync import sync_executors
from logstore.sync.sync_executors import BesideLoop


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    files = DiskFiles(str(tmp_path))
    file = files.open(f"{tmp_path}/file", create=True)
    file.pin()
    yield file
    file.unpin()
    file.close()
    files.close()


async def synced(executor: BesideLoop, file: DiskFile) -> OSError | None:
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    executor.sync(file, done.set_result)
    return await asyncio.wait_for(done, 10)


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


async def test_the_kernel_syncs_a_file_without_a_thread(file: DiskFile) -> None:
    before = threads()
    executor = BesideLoop()
    for number in range(100):
        file.write([b"%d" % number], 2 * number)
        assert await synced(executor, file) is None
    assert threads() <= before
    executor.close()


async def test_where_the_kernel_cannot_a_thread_does(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    def unavailable() -> KernelSync:
        asked.append(None)
        raise KernelSyncUnavailable

    monkeypatch.setattr(sync_executors, "KernelSync", unavailable)
    before = threads()
    executor = BesideLoop()
    for _ in range(3):
        assert await synced(executor, file) is None
    assert [thread.name for thread in threads() - before] == ["group-commit"]
    assert len(asked) == 1, "once is enough to know"
    executor.close()
    assert threads() <= before


@pytest.mark.parametrize(("machine", "bits"), [("x86_64", 31), ("aarch64", 31), ("s390x", 63)])
def test_no_system_call_is_made_whose_number_is_not_known(
    machine: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(sys, "maxsize", 2**bits - 1)
    with pytest.raises(KernelSyncUnavailable):
        KernelSync()


async def test_what_cannot_be_synced_by_the_kernel_says_why(file: DiskFile) -> None:
    kernel = KernelSync()
    reading, writing = os.pipe()
    with pytest.raises(KernelSyncUnavailable):
        kernel.begin(reading)  # It has nothing to sync.
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        kernel.begin(reading)
    kernel.close()


async def test_how_the_kernels_sync_has_failed_is_told(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = BesideLoop()
    result = KernelSync.result

    def failed(kernel: KernelSync) -> OSError | None:
        assert result(kernel) is None
        return OSError(errno.EIO, "fdatasync")

    monkeypatch.setattr(KernelSync, "result", failed)
    found = await synced(executor, file)
    assert found is not None and found.errno == errno.EIO
    monkeypatch.undo()

    def refused(_kernel: KernelSync, _descriptor: int) -> None:
        raise OSError(errno.EBADF, "io_submit")

    monkeypatch.setattr(KernelSync, "begin", refused)
    found = await synced(executor, file)
    assert found is not None and found.errno == errno.EBADF
    executor.close()


async def test_a_close_waits_for_the_sync_under_way_and_tells_nobody(file: DiskFile) -> None:
    executor = BesideLoop()
    told: list[OSError | None] = []
    assert await synced(executor, file) is None
    file.write([bytes(1 << 20)], 0)
    executor.sync(file, told.append)
    executor.close()
    await asyncio.sleep(0.01)
    assert told == []
