"""A check or a repair of one data directory, under its locks, on the real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from logstore.directory.data_directory import (
    DataDirectory,
    DirectoryInUse,
    Key,
    split_partition_name,
)
from logstore.disk.checkpoints import META_PROPERTIES
from logstore.disk.files import DiskFiles
from logstore.segments.findings import Finding, Severity
from magnetar.checking.directory_check import DirectoryCheck, Shared
from magnetar.checking.repair import Repair
from magnetar.storage.open_files import logs_max
from magnetar.storage.placing import NODES, node_directories, refusal_of_part
from magnetar.storage.sqlite_database import FILE_NAME

Watch = Callable[[int], None]


class NotCheckable(Exception):
    """The directory is in use, or is no data directory. Says what to do."""


def check_directory(path: Path, read_bytes: Watch) -> Iterator[Finding]:
    """Yield what is wrong in the data directory, and in those of its nodes: one report.

    Raises NotCheckable, OSError.
    """
    with _held(path) as (files, directories):
        shared = _shared(files, path, directories)
        for below in directories:
            yield from DirectoryCheck(
                files,
                str(path / below),
                read_bytes=read_bytes,
                shared=shared,
                below=below,
            ).findings()
        # Last: what is open on one node, another may coordinate.
        yield from shared.hanging.findings()


def repair_directory(
    path: Path, read_bytes: Watch, tell: Callable[[Finding], None]
) -> list[Finding]:
    """Mend the data directory, and those of its nodes; return what is left.

    Raises NotCheckable, OSError.
    """
    with _held(path) as (files, directories):
        shared = _shared(files, path, directories)
        return [
            finding
            for below in directories
            for finding in Repair(
                files, str(path), read_bytes=read_bytes, tell=tell, shared=shared, below=below
            ).run()
        ]


def _shared(files: DiskFiles, path: Path, directories: Sequence[str]) -> Shared:
    """Return what the checks of these directories share; they are named below `path`."""
    partitions: set[Key] = set()
    if len(directories) > 1:
        for below in directories:
            found = DataDirectory(str(path / below), files).found_partitions({})
            partitions.update((each.topic, each.partition) for each in found)
    return Shared(partitions)


def is_note(finding: Finding) -> bool:
    """Whether nothing is wrong that the next start does not do by itself."""
    return finding.severity is Severity.NOTE


@contextmanager
def _held(path: Path) -> Iterator[tuple[DiskFiles, list[str]]]:
    """Hold a data directory, and those of its nodes, which the value names below it, "" first."""
    known = {META_PROPERTIES, FILE_NAME}
    if not any(
        each.name in known or (each.is_dir() and split_partition_name(each.name) is not None)
        for each in path.iterdir()
    ):
        raise NotCheckable(f"{path} is no data directory: it has no catalog and no partition.")
    if (refusal := refusal_of_part(path)) is not None:
        raise NotCheckable(refusal)
    directories = ["", *(f"{NODES}/{each.name}/" for each in node_directories(path))]
    files = DiskFiles(str(path), open_max=logs_max())
    with ExitStack() as held:
        held.callback(files.close)
        for below in directories:
            data = DataDirectory(str(path / below), files)
            try:
                data.lock()
            except DirectoryInUse as in_use:
                raise NotCheckable(f"{in_use}. Stop the broker first.") from None
            held.callback(data.release)
        yield files, directories
