"""A check or a repair of one data directory, under its lock, on the real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from logstore.directory.data_directory import DataDirectory, DirectoryInUse, split_partition_name
from logstore.disk.checkpoints import META_PROPERTIES
from logstore.disk.files import DiskFiles
from logstore.segments.findings import Finding, Severity
from magnetar.checking.directory_check import DirectoryCheck
from magnetar.checking.repair import Repair
from magnetar.storage.open_files import logs_max
from magnetar.storage.placing import NODES, has_nodes
from magnetar.storage.sqlite_database import FILE_NAME

Watch = Callable[[int], None]


class NotCheckable(Exception):
    """The directory is in use, or is no data directory. Says what to do."""


def check_directory(path: Path, read_bytes: Watch) -> Iterator[Finding]:
    """Yield what is wrong in the data directory. Raises NotCheckable, OSError."""
    with _held(path) as files:
        yield from DirectoryCheck(files, str(path), read_bytes=read_bytes).findings()


def repair_directory(
    path: Path, read_bytes: Watch, tell: Callable[[Finding], None]
) -> list[Finding]:
    """Mend the data directory; return what is left. Raises NotCheckable, OSError."""
    with _held(path) as files:
        return Repair(files, str(path), read_bytes=read_bytes, tell=tell).run()


def is_note(finding: Finding) -> bool:
    """Whether nothing is wrong that the next start does not do by itself."""
    return finding.severity is Severity.NOTE


@contextmanager
def _held(path: Path) -> Iterator[DiskFiles]:
    known = {META_PROPERTIES, FILE_NAME}
    if not any(
        each.name in known or (each.is_dir() and split_partition_name(each.name) is not None)
        for each in path.iterdir()
    ):
        raise NotCheckable(f"{path} is no data directory: it has no catalog and no partition.")
    if has_nodes(path) or path.absolute().parent.name == NODES:
        # What is open on one node, another may coordinate: no directory tells of it alone.
        raise NotCheckable(
            f"{path} is of several nodes. A start of magnetar serve without --workers moves their"
            " partitions together; stop it, and name the whole data directory then."
        )
    files = DiskFiles(str(path), open_max=logs_max())
    data = DataDirectory(str(path), files)
    try:
        data.lock()
        try:
            yield files
        finally:
            data.release()
    except DirectoryInUse as in_use:
        raise NotCheckable(f"{in_use}. Stop the broker first.") from None
    finally:
        files.close()
