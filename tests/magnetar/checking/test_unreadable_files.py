"""A file that the disk cannot read is a finding, whichever it is: the check goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.checking.directory_check import DirectoryCheck
from tests.magnetar.checking.damages import flip, make
from tests.magnetar.checking.test_repair_crash import loaded

#: Their contents are of no interest, or SQLite reads them by itself.
_UNREAD = {".lock", ".kafka_cleanshutdown", "catalog.sqlite"}


@pytest.mark.parametrize("killed", [False, True])
def test_a_check_names_what_the_disk_cannot_read_and_goes_on(tmp_path: Path, killed: bool) -> None:
    data = tmp_path / "data"
    make(data, killed=killed)
    flip(data / "others-0" / f"{0:020d}.log", 80)
    disk = loaded(data)
    for path in [*data.iterdir(), *(data / "orders-0").iterdir()]:
        name = str(path.relative_to(data))
        if (
            path.is_dir()
            or name in _UNREAD
            or name.startswith("catalog")
            or not path.stat().st_size
        ):
            continue
        disk.media.break_sector(f"/data/{name}", 0, 1)
        found = [*DirectoryCheck(disk, "/data", on_read=lambda _: None).findings()]
        disk.media.mend_sectors()
        assert any(name in f"{each.path} {each.problem}" for each in found), (name, found)
        assert any(each.path.startswith("others-0/") for each in found), (name, found)
