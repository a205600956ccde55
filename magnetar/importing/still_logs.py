"""The logs of a stopped broker as a shared store has them: chunks, segments, small files.

A segment of a store has 8 MiB at most, so a larger one is divided, and so is what tells of its
aborted transactions. The bytes of batches are what they were.

Expects a broker that was stopped cleanly: then every file is whole, and the last snapshot is of the
log's end. Or an export of a cluster that no broker was started on: it is whole before it has its
name, and its snapshots are those that the cluster had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from logstore.directory.data_directory import split_partition_name
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    Offsets,
    decode_offsets,
    decode_partition_metadata,
)
from logstore.remote.commit_store import (
    AttachmentChange,
    Changes,
    Chunk,
    LogKey,
    LogStart,
    StoredSegment,
)
from logstore.remote.remote_directory import CLEANED, CLEANED_OFFSET
from logstore.segments.aborted_index import decode_entries
from logstore.segments.names import ABORTED_SUFFIX, aborted_name
from magnetar.importing.source import ImportRefused
from magnetar.storage.placing import node_directories
from magnetar.storage.remote_logs import SEGMENT_BYTES
from magnetar.storage.segment_files import Damage, read_batches, segments
from wire.records import BatchHeader
from wire.records.header import OFFSET_MAX

#: What is written at once, and what a chunk has at most unless one batch has more.
_PART_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
#: Says that a directory was exported from a cluster, and at which epoch.
EXPORTED = ".magnetar-exported"
_KEPT_SUFFIXES = (".state", ".snapshot")


class StillLog(NamedTuple):
    """A partition's directory, and what the checkpoints beside it say."""

    key: LogKey
    path: Path
    start_offset: int
    first_dirty_offset: int | None


def encode_exported(epoch: int) -> bytes:
    """Return what EXPORTED holds: the number of the last start that the catalog knows."""
    return b"%d\n" % epoch


def is_untouched_export(data_dir: Path, epoch: int) -> bool:
    """Return whether no broker was started since an export has made this directory.

    `epoch` is what its catalog says now: each start counts it up before it writes anything.
    """
    path = data_dir / EXPORTED
    return path.exists() and path.read_bytes() == encode_exported(epoch)


def still_logs(data_dir: Path, topics: dict[str, UUID], epoch: int) -> list[StillLog]:
    """Return the logs of these topics in a data directory, or in those of its nodes.

    `epoch`: the number of the last start. Raises ImportRefused where a broker was not stopped
    cleanly.
    """
    whole = data_dir if is_untouched_export(data_dir, epoch) else None
    found: dict[LogKey, StillLog] = {}
    for directory in (data_dir, *node_directories(data_dir)):
        starts = _checkpoint(directory / LOG_START_OFFSETS)
        dirty = _checkpoint(directory / CLEANER_OFFSETS)
        for path in sorted(directory.iterdir()):
            name = split_partition_name(path.name)
            if name is None or not path.is_dir() or not _is_of(path, topics.get(name[0])):
                continue
            if directory != whole and not (directory / CLEAN_SHUTDOWN).exists():
                raise ImportRefused(
                    f"{directory} was not stopped cleanly. Start its broker once more, by `magnetar"
                    f" serve --data-dir {data_dir}`, and stop it by SIGTERM."
                )
            key = LogKey(topics[name[0]], name[1])
            if key in found:
                raise ImportRefused(
                    f"{path.name} lies in {found[key].path.parent} and in {directory}. magnetar"
                    f" check {data_dir} says which belongs there, and magnetar repair sets the"
                    " other one aside."
                )
            found[key] = StillLog(key, path, starts.get(name, 0), dirty.get(name))
    return [found[key] for key in sorted(found)]


def _is_of(path: Path, topic_id: UUID | None) -> bool:
    """Whether the directory is of the topic that has this name now."""
    metadata = path / PARTITION_METADATA
    if topic_id is None:
        return False
    return not metadata.exists() or decode_partition_metadata(metadata.read_bytes()) == topic_id


def _checkpoint(path: Path) -> Offsets:
    return decode_offsets(path.read_bytes()) if path.exists() else {}


def size_bytes(log: StillLog) -> int:
    """Return how much the segments of a log take."""
    return sum(path.stat().st_size for path in segments(log.path))


def parts(log: StillLog) -> Iterator[Changes]:
    """Yield everything of a log, a few MiB at a time. Raises ImportRefused for a damaged file."""
    walk = _Walk(log.key)
    for path in segments(log.path):
        walk.begin(int(path.stem))
        for batch in read_batches(path):
            if isinstance(batch, Damage):
                raise ImportRefused(
                    f"{path} is damaged at byte {batch.position}: {batch.reason}. See"
                    " `magnetar check`."
                )
            walk.add(batch.header, bytes(batch.data))
            if walk.waiting_bytes >= _PART_BYTES:
                yield walk.taken()
    yield walk.taken()
    start_offset = max(log.start_offset, walk.bases[0] if walk.bases else 0)
    starts = [LogStart(log.key, start_offset)] if start_offset else []
    yield Changes(starts=starts, attachments=_attachments(log, walk.bases))


class _Walk:
    """Batches of one log on their way into chunks and segments."""

    def __init__(self, key: LogKey) -> None:
        self._key = key
        #: Where segments begin, ascending; the last one is the active one.
        self.bases: list[int] = []
        self.waiting_bytes = 0
        self._segment_bytes = 0
        self._max_timestamp_ms = -1
        self._chunks: list[Chunk] = []
        self._segments: list[StoredSegment] = []
        self._batches: list[bytes] = []
        self._batches_bytes = 0
        self._begin_offset = self._end_offset = 0

    def begin(self, base_offset: int) -> None:
        """Begin a segment."""
        self._end_chunk()
        if self.bases:
            self._segments.append(
                StoredSegment(
                    self._key,
                    self.bases[-1],
                    base_offset,
                    self._segment_bytes,
                    self._max_timestamp_ms,
                )
            )
        self.bases.append(base_offset)
        self._segment_bytes, self._max_timestamp_ms = 0, -1

    def add(self, header: BatchHeader, data: bytes) -> None:
        """Add a batch behind all others."""
        if self._segment_bytes and self._segment_bytes + len(data) > SEGMENT_BYTES:
            self.begin(header.base_offset)
        if self._batches_bytes + len(data) > _CHUNK_BYTES:
            self._end_chunk()
        if not self._batches:
            self._begin_offset = header.base_offset
        self._batches.append(data)
        self._batches_bytes += len(data)
        self._segment_bytes += len(data)
        self.waiting_bytes += len(data)
        self._end_offset = header.next_offset
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)

    def _end_chunk(self) -> None:
        if self._batches:
            data = b"".join(self._batches)
            self._chunks.append(Chunk(self._key, self._begin_offset, self._end_offset, data))
            self._batches, self._batches_bytes = [], 0

    def taken(self) -> Changes:
        """Return what is to be written, once."""
        self._end_chunk()
        changes = Changes(self._chunks, self._segments)
        self._chunks, self._segments, self.waiting_bytes = [], [], 0
        return changes


def _attachments(log: StillLog, bases: Sequence[int]) -> list[AttachmentChange]:
    """Return the small files of a log whose segments begin at `bases`."""
    kept, aborted = [], []
    for path in sorted(log.path.iterdir()):
        if path.name in (LEADER_EPOCHS, PARTITION_METADATA) or path.suffix in _KEPT_SUFFIXES:
            kept.append(AttachmentChange(log.key, path.name, path.read_bytes()))
        elif path.suffix == ABORTED_SUFFIX and path.stem.isdigit():
            entries, is_whole = decode_entries(path.read_bytes())
            if not is_whole:
                raise ImportRefused(f"{path} is damaged. See `magnetar check`.")
            aborted += entries
    for base_offset, end_offset in pairwise([*bases, OFFSET_MAX]):
        # By the marker, which lies in the segment.
        within = [one.encode() for one in aborted if base_offset <= one.last_offset < end_offset]
        if within:
            kept.append(AttachmentChange(log.key, aborted_name(base_offset), b"".join(within)))
    if log.first_dirty_offset is not None:
        data = CLEANED_OFFSET.pack(log.first_dirty_offset)
        kept.append(AttachmentChange(log.key, CLEANED, data))
    return kept
