"""A copy of a broker's data, taken in milliseconds, from which brokers begin as often as needed.

A running broker stands still (SIGSTOP) while its files are copied. What is copied is then what
`kill -9` at that moment would leave, and a start from it recovers what was acknowledged. Segments
that are complete never change again: they are linked, not copied. All other files are cloned where
the file system can do that (FICLONE), else copied.

A snapshot is a directory: `snapshot.json`, which says what wrote it, and `data`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from magnetar import __version__

#: Raised with each change of what a snapshot is.
FORMAT = 1
_FACTS = "snapshot.json"
_DATA = "data"
_FICLONE = 0x40049409
#: A new process makes its own: locks, and what SQLite keeps in memory that is shared.
_LEFT_OUT = (".lock", "-shm")
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS})
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK})


class SnapshotRefused(ValueError):
    """This is no snapshot that this version can begin from; the message says why."""


class Snapshot:
    """One snapshot on disk. Raises SnapshotRefused where there is none that can be used."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._check()

    def _check(self) -> None:
        try:
            facts = json.loads((self.path / _FACTS).read_text())
            written_by = facts["magnetar"], facts["format"]
        except (OSError, ValueError, KeyError, TypeError):
            raise SnapshotRefused(
                f"{self.path} is no snapshot: it has no readable {_FACTS}. broker.snapshot() makes"
                " one."
            ) from None
        if written_by != (__version__, FORMAT):
            raise SnapshotRefused(
                f"{self.path} is a snapshot of magnetar {written_by[0]} (format {written_by[1]}),"
                f" and this is {__version__} (format {FORMAT}). Take it anew with this version."
            )

    def copy_to(self, data_dir: Path) -> None:
        """Make `data_dir`, which must not run, what was copied; what it held is gone."""
        shutil.rmtree(data_dir, ignore_errors=True)
        _copy(self.path / _DATA, data_dir)

    def delete(self) -> None:
        """Delete it from disk."""
        shutil.rmtree(self.path, ignore_errors=True)


def found_at(place: Snapshot | Path | str) -> Snapshot:
    """Return a snapshot that is there now: another one may have been deleted. Raises as it."""
    return Snapshot(place.path if isinstance(place, Snapshot) else place)


def take(data_dir: Path, path: Path) -> Snapshot:
    """Copy a data directory in which nothing changes at present. Raises FileExistsError."""
    path.mkdir(parents=True)
    _copy(data_dir, path / _DATA)
    facts = {"magnetar": __version__, "format": FORMAT}
    (path / _FACTS).write_text(json.dumps(facts))
    return Snapshot(path)


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    finished = _finished_segments(source)
    for path in _files(source):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        if path in finished and _link(path, copied):
            continue
        _clone(path, copied)
    for path in source.rglob("*"):
        if path.is_dir():
            (target / path.relative_to(source)).mkdir(parents=True, exist_ok=True)


def _files(source: Path) -> Iterator[Path]:
    for path in source.rglob("*"):
        if path.is_file() and not path.name.endswith(_LEFT_OUT):
            yield path


def _finished_segments(source: Path) -> set[Path]:
    """Return the logs of all segments but the last of each partition: they never change."""
    by_directory: dict[Path, list[Path]] = defaultdict(list)
    # With several nodes, the partitions lie deeper: in directories of the nodes.
    for path in source.rglob("*/*.log"):
        by_directory[path.parent].append(path)
    return {path for paths in by_directory.values() for path in sorted(paths)[:-1]}


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _CANNOT_LINK:
            return False
        raise
    return True


def _clone(source: Path, target: Path) -> None:
    with source.open("rb") as original, target.open("wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
            _copy_bytes(original.fileno(), copy.fileno())
    shutil.copystat(source, target)


def _copy_bytes(source: int, target: int) -> None:
    """Copy the bytes of a file, and leave its holes: indexes and the journal are mostly holes."""
    size = os.fstat(source).st_size
    position = 0
    while position < size:
        try:
            begin = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # Only a hole is left.
            raise
        end = os.lseek(source, begin, os.SEEK_HOLE)
        os.lseek(target, begin, os.SEEK_SET)
        os.lseek(source, begin, os.SEEK_SET)
        while begin < end:
            begin += os.sendfile(target, source, None, end - begin)
        position = end
    os.truncate(target, size)
