"""One segment of a log: a `.log` file of whole batches, with its two indexes.

Owns the files, the indexes in memory, the positions of the latest batches, and when to roll. Not
durability (`FileLedger` syncs), recovery (`batch_recovery`) or reading ranges (`segment_reads`).

The active segment's index entries stay in memory until `flush_indexes`. After a crash recovery
makes them again from the log, so writing each one would gain nothing.

Only `size` bytes of the file count: no reader sees what a failed write left behind them.
Source: org.apache.kafka.storage.internals.log.LogSegment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from logstore.disk.files import File, FileSystem
from logstore.segments.batch_walk import WholeBatch, walk
from logstore.segments.ledger import SegmentLimits
from logstore.segments.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    segment_name,
    segment_path,
)
from logstore.segments.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from logstore.segments.offset_index import RELATIVE_OFFSET_MAX, OffsetIndex
from logstore.segments.segment_reads import scan
from logstore.segments.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from logstore.segments.time_index import TimeIndex
from logstore.segments.timestamps import latest_in_file
from wire.records import BatchHeader
from wire.records.header import LENGTH_OVERHEAD, NO_TIMESTAMP, OFFSET_MAX

#: How many of the latest batches have their exact position in memory, at most.
RECENT_BATCHES_MAX = 512


class Segment:
    """A segment's files and what is known of them. Its batches end at `size` and `next_offset`."""

    __slots__ = (
        "_bytes_since_entry",
        "_directory",
        "_files",
        "_first_timestamp",
        "_flushed",
        "_has_no_timestamp",
        "_index_bytes",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_recent_offsets",
        "_recent_positions",
        "_stage",
        "base_offset",
        "is_missing",
        "log_name",
        "next_offset",
        "open_file",
        "offset_index",
        "size",
        "time_index",
    )

    def __init__(self, files: FileSystem, directory: str, base_offset: int) -> None:
        self._files = files
        self._directory = directory
        #: The `.log` file, while it is open.
        self.open_file: File | None = None
        self._stage = ""
        self.base_offset = base_offset
        #: The name of the `.log` file while the segment is appended to.
        self.log_name = segment_name(base_offset, LOG_SUFFIX)
        self.next_offset = base_offset
        self.size = 0
        #: None: on disk, not loaded (`load_indexes`).
        self.offset_index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None
        self._flushed = (0, 0)  # index entries that are in the files
        self._index_bytes = 0  # size of the larger index after its next entry
        self._recent_offsets = array("q")
        self._recent_positions = array("q")
        self._bytes_since_entry = 0
        self._first_timestamp: int | None = None
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        self._has_no_timestamp = False  # all of it was read, and no record has one
        #: Whether another program has deleted the `.log` file, or moved it, as far as known.
        self.is_missing = False

    @classmethod
    def create(
        cls, files: FileSystem, directory: str, base_offset: int, stage: str = ""
    ) -> Segment:
        """Make the files of an empty segment. Its names are durable after a directory sync.

        `stage` ends all of its names until `enter_stage`.
        """
        segment = cls(files, directory, base_offset)
        segment._stage = stage
        segment.offset_index = OffsetIndex(base_offset)
        segment.time_index = TimeIndex(base_offset)
        segment._measure_indexes()
        segment.open_file = files.open(segment.path(LOG_SUFFIX), create=True)
        return segment

    def resume_closed(self, size: int, end_offset: int) -> None:
        """Begin as the segment was when it was closed, without reading it."""
        self.size, self.next_offset = size, end_offset

    @property
    def bounds(self) -> tuple[int, int]:
        """The offsets that its batches can have: from the first one on, below the second."""
        return self.base_offset, self.next_offset

    @property
    def latest(self) -> tuple[int, int]:
        """The largest timestamp (-1: none) and the last offset of its batch, as far as known."""
        return self._max_timestamp, self._offset_of_max_timestamp

    def path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix + self._stage)

    def enter_stage(self, stage: str) -> None:
        """Go by other names from here on. The files have them already."""
        self._stage = stage

    @property
    def file(self) -> File:
        """The `.log` file, opened when it is needed."""
        if self.open_file is None:
            self.open_file = self._files.open(self.path(LOG_SUFFIX))
        return self.open_file

    # Appending

    def is_full_for(self, header: BatchHeader, limits: SegmentLimits) -> bool:
        """Whether this batch has to begin a new segment. An empty segment takes any batch."""
        if self.offset_index is None:
            self.load_indexes()
        if not self.size:
            return False
        # Age is by the records' own time, as in Kafka: since the first batch's max timestamp.
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            first_timestamp = self._first_timestamp = self._read_first_timestamp()
        return (
            self.size + LENGTH_OVERHEAD + header.batch_length > limits.segment_bytes
            or (first_timestamp >= 0 and header.max_timestamp - first_timestamp > limits.segment_ms)
            or self._index_bytes > limits.segment_index_bytes
            or header.base_offset + header.last_offset_delta - self.base_offset
            > RELATIVE_OFFSET_MAX
        )

    def _read_first_timestamp(self) -> int:
        first = next(self.headers(0), None)
        return NO_TIMESTAMP if first is None else first[1].max_timestamp

    def _measure_indexes(self) -> None:
        """Measure the indexes: after every change of them while the segment is appended to."""
        assert self.offset_index is not None and self.time_index is not None
        self._index_bytes = max(
            (len(self.offset_index) + 1) * OFFSET_ENTRY_BYTES,
            # One more than the next: the close of the segment adds a last entry.
            (len(self.time_index) + 2) * TIME_ENTRY_BYTES,
        )

    def append(
        self, header: BatchHeader, index_interval_bytes: int, *, is_recent: bool = True
    ) -> None:
        """Account for the batch behind the last one, which is written, or will be, at `size`.

        `is_recent`: remember its place among the latest ones. Recovery and the cleaner do not: no
        fetch of the latest batches asks for what they read.
        """
        offset_index, time_index = self.offset_index, self.time_index
        assert offset_index is not None and time_index is not None, "its indexes are in memory"
        base_offset, position, timestamp = header.base_offset, self.size, header.max_timestamp
        # Compaction leaves gaps inside a segment; nothing may go back.
        assert base_offset >= self.next_offset, "offsets follow each other"
        last_offset = base_offset + header.last_offset_delta
        if is_recent:
            recent = self._recent_offsets
            recent.append(base_offset)
            self._recent_positions.append(position)
            if len(recent) > RECENT_BATCHES_MAX:
                del recent[: RECENT_BATCHES_MAX // 2]
                del self._recent_positions[: RECENT_BATCHES_MAX // 2]
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
            self._offset_of_max_timestamp = last_offset
        if not position:
            self._first_timestamp = timestamp
        if self._bytes_since_entry > index_interval_bytes:
            offset_index.append(last_offset, position)
            time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
            self._measure_indexes()
            self._bytes_since_entry = 0
        size_bytes = LENGTH_OVERHEAD + header.batch_length
        self._bytes_since_entry += size_bytes
        self.size = position + size_bytes
        self.next_offset = last_offset + 1

    def resume_at(self, position: int, next_offset: int) -> None:
        """Go on at `position`, where a batch begins that has an index entry."""
        assert self.time_index is not None
        self.size, self.next_offset = position, next_offset
        self._bytes_since_entry = 0
        self._measure_indexes()
        if self.time_index.last is not None:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last

    # Finding

    def recent_range(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
    ) -> tuple[int, int] | None:
        """Return the exact file range of whole batches to read. None: it is forgotten."""
        offsets, positions = self._recent_offsets, self._recent_positions
        if not offsets or offset < offsets[0]:
            return None
        first = bisect_right(offsets, offset) - 1
        end = bisect_left(offsets, end_offset, first)
        if (offsets[end] if end < len(offsets) else self.next_offset) > end_offset:
            end -= 1  # the last batch below is not whole below
        if end <= first or offset >= self.next_offset:
            return 0, 0
        start = positions[first]
        if self._recent_end(end) - start > max_bytes:
            end = bisect_right(positions, start + max_bytes, first, end) - 1
            if end == first:
                end = first + 1 if at_least_one else first
        return start, self._recent_end(end)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Return the bytes of this segment in [offset, end_offset), as `Batches.bytes_between`."""
        offset = max(offset, self.base_offset)
        exact = self.recent_range(offset, self.size, end_offset, at_least_one=False)
        if exact is not None:
            return exact[1] - exact[0]
        index = self.offset_index
        start = 0 if index is None else index.lookup(offset)
        if index is None or end_offset >= self.next_offset:
            return self.size - start
        return index.lookup(end_offset) - start

    def _recent_end(self, entry: int) -> int:
        positions = self._recent_positions
        return positions[entry] if entry < len(positions) else self.size

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of every batch from the one at `position` on."""
        for at, header, _ in scan(self.file, position, self.size, whole=False):
            yield at, header

    def whole_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield what can be read of a segment whose file may be damaged, as `TrimmedSegment`."""
        for found in walk(self.file, self.base_offset, self.next_offset):
            if isinstance(found, WholeBatch):
                yield found.header, found.data

    @property
    def max_timestamp_known(self) -> int | None:
        """The largest timestamp, -1 if there is none. None: it has to be read."""
        if self._max_timestamp == NO_TIMESTAMP and self.size and not self._has_no_timestamp:
            return None
        return self._max_timestamp

    def read_max_timestamp(self, file: File) -> tuple[int, int]:
        """Return what `latest` is to tell, read from the `.log` file, and close the file.

        Changes nothing in this object: a thread may do it.
        """
        try:
            offsets, times = self.read_indexes()
            known = times.last or (NO_TIMESTAMP, self.base_offset)
            return latest_in_file(file, offsets.lookup(known[1]), self.size, OFFSET_MAX, known)
        finally:
            file.close()

    def learn_max_timestamp(self, timestamp_ms: int, offset: int) -> None:
        """Take over what was read. An append may have brought a later timestamp meanwhile."""
        self._has_no_timestamp = timestamp_ms == NO_TIMESTAMP
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = timestamp_ms, offset

    # Indexes on disk

    @property
    def index_memory_bytes(self) -> int:
        """What the indexes take in memory."""
        if self.offset_index is None or self.time_index is None:
            return 0
        return len(self.offset_index) * OFFSET_ENTRY_BYTES + len(self.time_index) * TIME_ENTRY_BYTES

    def load_indexes(self) -> None:
        """Read the indexes from their files. What they lack makes a search longer, never wrong."""
        if self.offset_index is None:
            self.take_indexes(*self.read_indexes())

    def take_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Keep the indexes that were read, unless there are some in memory."""
        if self.offset_index is None:
            self._flushed = len(index), len(times)
            self._bytes_since_entry = self.size - index.lookup(OFFSET_MAX)
            self.offset_index, self.time_index = index, times
            self._measure_indexes()

    def read_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        offsets = self._read_index(OFFSET_INDEX_SUFFIX)
        index = OffsetIndex.decode(self.base_offset, offsets, self.size)
        return index, TimeIndex.decode(self.base_offset, self._read_index(TIME_INDEX_SUFFIX))

    def _read_index(self, suffix: str) -> bytes:
        try:
            file = self._files.open(self.path(suffix))
        except FileNotFoundError:  # A trim may have taken the segment from its reader.
            return b""
        try:
            data = file.read(file.size(), 0)
        finally:
            file.close()
        # Put aside meanwhile, so the name may have become another segment's, and the index with it.
        return b"" if self._stage else data

    def flush_indexes(self, *, final: bool = False, whole: bool = False) -> list[File]:
        """Write entries that are not in the files yet. Return the files, for a sync and a close.

        `final`: nothing is appended any more, which adds a last time entry. `whole`:
        write all entries and cut the files after them, whatever they held.
        """
        self.load_indexes()
        assert self.offset_index is not None and self.time_index is not None
        if final and self._max_timestamp >= 0:
            self.time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
        from_offsets, from_times = (0, 0) if whole else self._flushed
        offsets = self._write_index(
            OFFSET_INDEX_SUFFIX,
            self.offset_index.encode(from_offsets),
            from_offsets * OFFSET_ENTRY_BYTES,
        )
        times = self._write_index(
            TIME_INDEX_SUFFIX,
            self.time_index.encode(from_times),
            from_times * TIME_ENTRY_BYTES,
        )
        self._flushed = len(self.offset_index), len(self.time_index)
        return [offsets, times]

    def _write_index(self, suffix: str, data: bytes, position: int) -> File:
        file = self._files.open(self.path(suffix), create=True)
        if data:
            file.write((data,), position)
        if file.size() > position + len(data):
            file.truncate(position + len(data))
        return file

    # The end

    def become_inactive(self) -> None:
        """Keep less in memory: nothing is appended any more, and the indexes are flushed."""
        del self._recent_offsets[:], self._recent_positions[:]
        self.offset_index = self.time_index = None

    def close(self) -> None:
        """Close the file, once the last reader is done. `file` opens it again."""
        if self.open_file is not None:
            self.open_file.close()
            self.open_file = None

    def put_aside(self, stage: str, suffixes: Sequence[str]) -> list[str]:
        """Rename all files of these suffixes, to end in `stage`. Return them, to be deleted.

        A reader of the segment or of its indexes goes on.
        """
        left = []
        for suffix in suffixes:
            path = self.path(suffix)
            if self._files.exists(path):
                self._files.rename(path, path + stage)
                left.append(path + stage)
        self._stage = stage
        self.close()
        return left

    def delete(self) -> None:
        """Unlink all files. Readers that have the log pinned go on."""
        self.close()
        for suffix in SEGMENT_SUFFIXES:
            if self._files.exists(self.path(suffix)):
                self._files.unlink(self.path(suffix))
