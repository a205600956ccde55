"""Mending one partition's directory: what `LogCheck` has found, and each remedy for it.

Nothing is deleted. What is wrong goes to `DATA/.magnetar-set-aside`, with a line in its list; then
the new file gets its name. A damaged segment is copied there before the one made of its whole
batches takes its name, so a kill at any step leaves one of the two, whole. A start, or another
repair, goes on from either.

Where batches are lost in front of others, an empty batch stands for their offsets, as compaction
leaves one: the log has no gap, at which a recovery would end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from uuid import UUID

from logstore.disk.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    encode_leader_epochs,
    encode_partition_metadata,
)
from logstore.disk.files import Buffer, File, FileSystem
from logstore.partition.log_check import LogCheck
from logstore.partition.log_config import LogConfig
from logstore.segments.attachments import SmallFiles
from logstore.segments.batch_walk import DamagedPlace, walk
from logstore.segments.findings import Finding, Remedy
from logstore.segments.ledger import UNREADABLE
from logstore.segments.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    UNFINISHED,
    segment_path,
)
from logstore.segments.offset_index import OffsetIndex
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import SCAN_BYTES, scan
from wire.records.header import OFFSET_MAX
from wire.records.spans import batch_without_records

SET_ASIDE = ".magnetar-set-aside"
_LIST = "list.txt"
#: What is read at once around a bad sector.
_SECTOR_BYTES = 4096
_DELTA_MAX = 2**31 - 1


class SetAside:
    """The place in a data directory for what a repair takes out of it."""

    def __init__(self, files: FileSystem, data: str, below: str = "") -> None:
        """`below`: what paths are relative to, such as the directory of a node, `nodes/2/`."""
        self._files = files
        self._data = data
        self._below = below

    def move(self, path: str, why: str) -> None:
        """Move a file or a directory of that path, if it is there."""
        path = self._below + path
        if self._files.exists(f"{self._data}/{path}"):
            target = self._target(path, why)
            self._files.rename(f"{self._data}/{path}", target)
            self._sync(path, target)

    def copy(self, path: str, why: str) -> None:
        """Copy a file; zeros stand for what the disk cannot read."""
        path = self._below + path
        target = self._target(path, why)
        with closing(self._files.open(f"{self._data}/{path}")) as source:
            _write_anew(self._files, target, _readable(source))
        self._sync(path, target)

    def _target(self, path: str, why: str) -> str:
        """Return a free path below the set-aside directory, which is in its list already."""
        root = f"{self._data}/{SET_ASIDE}"
        name, count = path, 1
        while self._files.exists(f"{root}/{name}"):
            count += 1
            name = f"{path}.{count}"
        self._files.make_directory(f"{root}/{name}".rpartition("/")[0])
        lines = self._files.open(f"{root}/{_LIST}", create=True)
        try:
            lines.write((f"{path} -> {SET_ASIDE}/{name}: {why}\n".encode(),), lines.size())
            lines.sync()
        finally:
            lines.close()
        return f"{root}/{name}"

    def _sync(self, path: str, target: str) -> None:
        directories = {
            target.rpartition("/")[0],
            f"{self._data}/{path}".rpartition("/")[0],
            f"{self._data}/{SET_ASIDE}",
            self._data,
        }
        for directory in sorted(directories, key=len, reverse=True):
            self._files.sync_directory(directory)


class Mending:
    """The remedies for one checked partition."""

    def __init__(
        self,
        files: FileSystem,
        data: str,
        name: str,
        check: LogCheck,
        topic_id: UUID | None,
        aside: SetAside,
        *,
        may_have_gaps: bool,
    ) -> None:
        """`name` is the partition's directory in `data`; `topic_id` the one that the catalog has.

        `aside` takes paths below `data`.
        """
        self._files = files
        self._directory = f"{data}/{name}"
        self._name = name
        self._check = check
        self._topic_id = topic_id
        self._may_have_gaps = may_have_gaps
        self._aside = aside
        self._small = SmallFiles(files, self._directory)

    def perform(self, finding: Finding) -> None:
        """Do what the finding's remedy says. Durable on return. Raises OSError."""
        remedy, path, why = finding.remedy, finding.path, finding.problem
        file_name = path.rpartition("/")[2]
        if remedy is Remedy.KEEP_WHOLE:
            self._keep_whole(int(file_name.partition(".")[0]), why)
        elif remedy is Remedy.INDEX:
            self._rebuild_indexes(int(file_name.partition(".")[0]), why)
        elif remedy is Remedy.ABORTED:
            base_offset = int(file_name.partition(".")[0])
            entries = self._check.aborted_of(base_offset, self._end_of(base_offset) or OFFSET_MAX)
            self._replace(file_name, b"".join(entry.encode() for entry in entries), why)
        elif remedy is Remedy.EPOCHS:
            epochs = self._check.state.leader_epochs.entries
            self._replace(LEADER_EPOCHS, encode_leader_epochs(epochs), why)
        elif remedy is Remedy.METADATA and self._topic_id is not None:
            self._replace(PARTITION_METADATA, encode_partition_metadata(self._topic_id), why)
        else:
            self._aside.move(path, why)

    def _replace(self, name: str, data: bytes, why: str) -> None:
        self._aside.move(f"{self._name}/{name}", why)
        if data:
            self._small.write(name, data, sync=True)

    def _end_of(self, base_offset: int) -> int | None:
        """Return where the next segment begins, None behind the last one."""
        later = [each for each in self._check.base_offsets if each > base_offset]
        return later[0] if later else None

    def _keep_whole(self, base_offset: int, why: str) -> None:
        path = segment_path(self._directory, base_offset, LOG_SUFFIX)
        with closing(self._files.open(path)) as source:
            _write_anew(self._files, path + UNFINISHED, self._whole(source, base_offset))
        self._aside.copy(segment_path(self._name, base_offset, LOG_SUFFIX), why)
        self._files.rename(path + UNFINISHED, path)
        self._files.sync_directory(self._directory)
        self._rebuild_indexes(base_offset, "its segment was damaged")

    def _whole(self, source: File, base_offset: int) -> Iterator[Buffer]:
        """Yield the whole batches of a segment, and empty ones for what is lost between them."""
        end_offset = self._end_of(base_offset)
        next_offset, leader_epoch, has_lost = base_offset, -1, False
        hints = self._hints(base_offset, source.size())
        for each in walk(source, base_offset, end_offset or OFFSET_MAX, hints):
            if isinstance(each, DamagedPlace):
                has_lost = True
                continue
            header = each.header
            if header.base_offset > next_offset and (has_lost or not self._may_have_gaps):
                yield from _empty(next_offset, header.base_offset, leader_epoch)
            end = each.position + header.size_bytes
            for at in range(each.position, end, SCAN_BYTES):
                yield source.read(min(SCAN_BYTES, end - at), at)
            next_offset, has_lost = header.next_offset, False
            leader_epoch = header.partition_leader_epoch
        if end_offset is not None and (has_lost or not self._may_have_gaps):
            yield from _empty(next_offset, end_offset, leader_epoch)

    def _hints(self, base_offset: int, size: int) -> list[int]:
        name = segment_path(self._directory, base_offset, OFFSET_INDEX_SUFFIX).rpartition("/")[2]
        data = self._check.read(name) or b""
        return list(OffsetIndex.decode(base_offset, data, size).positions)

    def _rebuild_indexes(self, base_offset: int, why: str) -> None:
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._aside.move(segment_path(self._name, base_offset, suffix), why)
        segment = Segment.create(self._files, self._directory, base_offset)
        interval = LogConfig().index_interval_bytes
        for _, header, _ in scan(segment.file, 0, segment.file.size(), whole=False):
            segment.append(header, interval, is_recent=False)
        for file in segment.flush_indexes(final=True, whole=True):
            file.sync()
            file.close()
        segment.close()
        self._files.sync_directory(self._directory)


def _empty(first_offset: int, end_offset: int, leader_epoch: int) -> Iterator[Buffer]:
    """Yield a batch without records for the offsets [first_offset, end_offset)."""
    if 0 < end_offset - first_offset <= _DELTA_MAX:
        yield batch_without_records(first_offset, end_offset, leader_epoch)


def _write_anew(files: FileSystem, path: str, pieces: Iterable[Buffer]) -> None:
    """Write a file of these pieces, and sync it. A file of that name is overwritten."""
    file = files.open(path, create=True)
    try:
        # A repair that was killed may have left the file.
        file.truncate(0)
        position = 0
        for data in pieces:
            file.write((data,), position)
            position += len(data)
        file.sync()
    finally:
        file.close()


def _readable(source: File) -> Iterator[Buffer]:
    size = source.size()
    for position in range(0, size, SCAN_BYTES):
        wanted = min(SCAN_BYTES, size - position)
        try:
            yield source.read(wanted, position)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            for at in range(position, position + wanted, _SECTOR_BYTES):
                yield _sector(source, min(_SECTOR_BYTES, position + wanted - at), at)


def _sector(source: File, size: int, position: int) -> Buffer:
    try:
        return source.read(size, position)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return bytes(size)
