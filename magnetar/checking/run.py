"""A check or a repair of one data directory, under its locks, on the real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from logstore.directory.data_directory import (
    DataDirectory,
    DirectoryInUse,
    Key,
    split_partition_name,
)
from logstore.disk.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES
from logstore.disk.files import DiskFiles
from logstore.segments.findings import Finding, Severity
from logstore.segments.names import SEGMENT_SUFFIXES
from logstore.sync.journal import JOURNAL, RECORDS_AT, refusal_of_build
from magnetar.checking.directory_check import DirectoryCheck, Shared, lying_partitions
from magnetar.checking.repair import Repair
from magnetar.checking.stored_catalog import refusal_of_newer_catalog
from magnetar.storage.open_files import logs_max
from magnetar.storage.placing import NODES, node_directories, refusal_of_part
from magnetar.storage.sqlite_database import FILE_NAME

#: Each directory of a partition has a file whose name ends with one of these.
_OF_PARTITIONS = (*SEGMENT_SUFFIXES, ".metadata", ".snapshot")
#: Is told of each read, in bytes.
OnRead = Callable[[int], None]


class NotCheckable(Exception):
    """The directory is in use, of another build, or no data directory. Says what to do."""


def check_directory(path: Path, on_read: OnRead) -> Iterator[Finding]:
    """Yield what is wrong in the data directory, and in the directories of its nodes.

    Raises NotCheckable, OSError.
    """
    with _held(path) as (files, directories):
        shared = _shared(files, path, directories)
        for below in directories:
            yield from DirectoryCheck(
                files,
                str(path / below),
                on_read=on_read,
                shared=shared,
                below=below,
            ).findings()
        # Last: the transactions that are open on one node may be coordinated by another.
        yield from shared.hanging.findings()


def repair_directory(path: Path, on_read: OnRead, tell: Callable[[Finding], None]) -> list[Finding]:
    """Mend the data directory and the directories of its nodes; return what is left.

    `tell` is called with each finding before its remedy is done.

    Raises NotCheckable, OSError.
    """
    with _held(path) as (files, directories):
        shared = _shared(files, path, directories)
        return [
            finding
            for below in directories
            for finding in Repair(
                files, str(path), on_read=on_read, tell=tell, shared=shared, below=below
            ).run()
        ]


def _shared(files: DiskFiles, path: Path, directories: Sequence[str]) -> Shared:
    """Return what the checks of these directories share. `directories` are paths below `path`."""
    partitions: dict[str, set[Key]] = {}
    data = {below: DataDirectory(str(path / below), files) for below in directories}
    if len(directories) > 1:
        for below in directories:
            partitions[below] = set(lying_partitions(data[below]))
    return Shared(partitions, data)


def is_note(finding: Finding) -> bool:
    """Whether the next start does by itself what is needed: then nothing is wrong."""
    return finding.severity is Severity.NOTE


def _is_partition(path: Path) -> bool:
    """Whether a directory is a partition's: by its name, and by a file that Kafka names so."""
    if not path.is_dir() or split_partition_name(path.name) is None:
        return False
    return any(each.suffix in _OF_PARTITIONS for each in path.iterdir())


@contextmanager
def _held(path: Path) -> Iterator[tuple[DiskFiles, list[str]]]:
    """Lock a data directory and the directories of its nodes.

    The value has their paths below `path`: "" for the data directory, then "nodes/1/" and so on.
    """
    known = {META_PROPERTIES, FILE_NAME}
    if not any(each.name in known or _is_partition(each) for each in path.iterdir()):
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
        if (refusal := _refusal_of_build(path, directories)) is not None:
            raise NotCheckable(f"{refusal}.")
        yield files, directories


def _refusal_of_build(path: Path, directories: Sequence[str]) -> str | None:
    """Return why this build cannot judge what another one has written; None: it can."""
    for below in directories:
        journal = path / below / JOURNAL
        # After a clean stop a start reads no journal.
        if (path / below / CLEAN_SHUTDOWN).exists() or not journal.is_file():
            continue
        # The check tells of a file that cannot be read.
        with suppress(OSError), journal.open("rb") as file:
            if (refusal := refusal_of_build(file.read(RECORDS_AT))) is not None:
                return f"{journal}: {refusal}"
    return refusal_of_newer_catalog(path)
