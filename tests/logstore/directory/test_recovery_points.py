"""Recovery points that have moved are written in time, and never behind the end of a directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from logstore.directory import recovery_points
from logstore.disk.checkpoints import RECOVERY_POINTS
from logstore.partition.log_config import LogConfig
from tests.logstore.directory.test_log_directory import NOW_MS, TOPIC_ID, Opened, write
from tests.logstore.partitions import batch_of


async def test_a_directory_that_was_closed_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have it by then."""
    monkeypatch.setattr(recovery_points, "_CHECKPOINT_AFTER_S", 0.05)
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, LogConfig(segment_bytes=100))
    await write(log)
    # It begins a segment and is not durable: the close makes it so, and moves the recovery point.
    log.append(log.check(batch_of(b"x"), NOW_MS))
    await opened.directory.close()
    (tmp_path / RECOVERY_POINTS).unlink()
    await asyncio.sleep(0.3)
    assert not (tmp_path / RECOVERY_POINTS).exists()
    opened.end()
