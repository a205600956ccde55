"""The cleaner replaces a segment while a reader is about to read its index."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.disk.files import DiskFiles
from logstore.partition.log_config import LogConfig
from logstore.segments.file_ledger import FileLedger
from tests.logstore import ledgers
from tests.logstore.ledgers import close_cleanly
from wire.records import BatchHeader

LIMITS = LogConfig(segment_bytes=3000, index_interval_bytes=150)
COUNT = 40
ALL = 2**62
T = TypeVar("T")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    disk = DiskFiles(str(tmp_path))
    yield disk
    disk.close()


def filled(files: DiskFiles, directory: str) -> tuple[FileLedger, list[bytes]]:
    """Return a ledger of batches no two of which have the same size, and these."""
    return ledgers.filled(files, directory, LIMITS, range(50, 50 + COUNT))


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def replace_first_segment(ledger: FileLedger, batches: list[bytes]) -> None:
    """Put every other batch of the first segment in its place, and the last one."""
    last = ledger.segments.base_offsets[1] - 1
    replacement = ledger.segments.replacement([0])
    assert replacement is not None
    for offset in sorted({*range(1, last, 2), last}):
        replacement.append(batches[offset], BatchHeader.parse(batches[offset]))
    replacement.seal(b"")
    assert await replacement.swap(in_thread, lambda: None)


class StalledIndex:
    """Who opens the index of the first segment waits, once, with its path in hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_opening, self.go_on = threading.Event(), threading.Event()
        open_file = DiskFiles.open

        def stalled(files: DiskFiles, path: str, *, create: bool = False) -> DiskFile:
            if path.endswith(f"{0:020d}.index") and not self.is_opening.is_set():
                self.is_opening.set()
                assert self.go_on.wait(10)
            return open_file(files, path, create=create)

        monkeypatch.setattr(DiskFiles, "open", stalled)


@pytest.mark.parametrize("place", [0, 3, 10, 15])
async def test_a_read_does_not_use_the_index_of_what_has_replaced_its_segment(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    ledger, batches = filled(files, str(tmp_path / "t-0"))
    stalled = StalledIndex(monkeypatch)
    reader = asyncio.create_task(ledger.batches.read_cold(place, 300, ALL))
    await asyncio.to_thread(stalled.is_opening.wait, 10)
    await replace_first_segment(ledger, batches)
    stalled.go_on.set()
    found = bytes(await reader)
    assert found and b"".join(batches[place:]).startswith(found)
    close_cleanly(ledger)
