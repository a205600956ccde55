"""syncfs counts only where it covers the whole directory and tells of errors."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from logstore.disk.files import DiskFiles
from logstore.disk.sync_all import (
    obstacle,
    obstacle_of_file_system,
    obstacle_of_kernel,
    obstacle_of_mounts,
)
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.storage.logs import Logs


@pytest.mark.parametrize("release", ["5.8", "5.8.0-rc1", "5.15.0-91-generic", "6.1.4", "10.0"])
def test_a_kernel_from_5_8_on_tells_of_errors(release: str) -> None:
    assert obstacle_of_kernel(release) is None


@pytest.mark.parametrize("release", ["5.7.19", "4.18.0-553.el8_10.x86_64", "4.4.0", "", "gVisor"])
def test_an_earlier_kernel_or_an_unknown_one_does_not(release: str) -> None:
    assert "does not report" in (obstacle_of_kernel(release) or "")


def test_only_file_systems_that_are_known_to_tell_count() -> None:
    assert obstacle_of_file_system(0xEF53) is None  # ext4
    assert "overlayfs" in (obstacle_of_file_system(0x794C7630) or "")
    assert "0x1234" in (obstacle_of_file_system(0x1234) or "")


def test_a_directory_on_another_file_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-1").symlink_to(tmp_path / "gone")
    (tmp_path / "t-3").symlink_to(tmp_path / "t-3")
    assert obstacle_of_mounts(str(tmp_path)) is None
    (tmp_path / "t-2").symlink_to("/proc/self")
    assert f"{tmp_path}/t-2 is on another" in (obstacle_of_mounts(str(tmp_path)) or "")
    files = DiskFiles(str(tmp_path))
    assert not files.can_sync_all
    assert files.sync_all_obstacle is not None
    files.close()


def test_a_directory_that_goes_meanwhile_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that keeps nothing looks at the directory for temporary files, which all use."""
    (tmp_path / "gone").mkdir()

    def stat(path: str, **options: Any) -> os.stat_result:
        if path == str(tmp_path / "gone"):
            raise FileNotFoundError(path)
        return real_stat(path, **options)

    real_stat = os.stat
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        assert obstacle_of_mounts(str(tmp_path)) is None


async def test_without_syncfs_there_is_no_journal_and_the_log_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").symlink_to("/proc/self")
    logs = Logs.in_directory(
        str(tmp_path), BrokerConfig(), SystemClock(), lambda failure: pytest.fail(str(failure))
    )
    await logs.close()
    assert not (tmp_path / ".magnetar-journal").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "no journal" in line and "elsewhere" in line


def test_this_machine_has_the_call_by_which_a_file_system_is_recognised(tmp_path: Path) -> None:
    assert hasattr(ctypes.CDLL(None), "fstatfs")
    files = DiskFiles(str(tmp_path))
    assert files.can_sync_all == (obstacle(str(tmp_path), files._root) is None)
    files.close()


@pytest.mark.parametrize("durability", ["memory", "fsync"])
async def test_closed_logs_leave_no_descriptor_behind(tmp_path: Path, durability: str) -> None:
    def descriptors_of(path: Path) -> int:
        return sum(
            os.path.realpath(link) == str(path.resolve())
            for link in Path("/proc/self/fd").iterdir()
        )

    root = Path(tempfile.gettempdir()) if durability == "memory" else tmp_path
    before = descriptors_of(root)
    config = BrokerConfig({"durability": durability})
    logs = Logs.in_directory(
        str(tmp_path), config, SystemClock(), lambda failure: pytest.fail(str(failure))
    )
    await logs.close()
    assert descriptors_of(root) == before
