"""A stop makes everything durable while a sync of group commit is under way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from logstore.disk.descriptors import DiskFile
from tests.logstore.directory.test_log_directory import TOPIC_ID, Opened, write
from tests.logstore.partitions import expire


async def test_a_sync_that_ends_closes_no_file_that_the_stop_is_syncing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where there is no syncfs, each file is synced.
    monkeypatch.setattr("logstore.disk.files.obstacle", lambda *_: "a test")
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    sync, is_syncing, is_stopping = DiskFile.sync, threading.Event(), threading.Event()
    go_on = threading.Event()

    def paused(file: DiskFile) -> None:
        if threading.current_thread().name == "group-commit":
            is_syncing.set()
            assert is_stopping.wait(10)
        elif not is_stopping.is_set():
            is_stopping.set()
            assert go_on.wait(10)
        sync(file)

    # Retention ends a segment, whose indexes the next sync covers and closes.
    expire(log, log.log_end_offset)
    monkeypatch.setattr(DiskFile, "sync", paused)
    await asyncio.to_thread(is_syncing.wait, 10)
    stopping = asyncio.ensure_future(opened.stop())
    await asyncio.to_thread(is_stopping.wait, 10)
    while not opened.commit.is_idle:
        await asyncio.sleep(0.001)
    go_on.set()
    await stopping
    assert not opened.failures
    opened = Opened(tmp_path)
    assert opened.directory.clean_stop.was_clean
    await opened.stop()
