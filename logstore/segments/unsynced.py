"""What a ledger in files has appended since the last sync began, as the journal would have it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from logstore.disk.files import Buffer, File
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import Readable
from logstore.sync.journal import JOURNALED_BYTES_MAX, Entry, entry_id


class Held(NamedTuple):
    """A batch that has its place in a segment, and is written there when the journal has it."""

    segment: Segment
    entry: Entry

    def write(self) -> None:
        """Write it to its file. Raises OSError."""
        self.segment.file.write((self.entry.data,), self.entry.position)


class Unsynced:
    """The appends of one ledger: those in the page cache, and those held back from it.

    Behind what is held back others may be written: a hole in the file, of which nobody is told who
    reads what is durable, and at which recovery would end the log.
    """

    def __init__(self, directory: str, topic_id: UUID | None) -> None:
        self._topic_id = entry_id(topic_id)
        self._prefix = f"{os.path.basename(directory)}/"
        self._written: list[Entry] | None = []
        self._written_bytes = 0
        self._held: list[Held] = []
        self._held_in_sync: list[Held] = []

    def note_written(self, name: str, position: int, data: Buffer) -> None:
        """`data` was written to the file of that name."""
        if self._written is not None:
            self._written_bytes += len(data)
            if self._written_bytes > JOURNALED_BYTES_MAX:
                self._written = None
            else:
                self._written.append(self._entry(name, position, data))

    def hold(self, segment: Segment, data: Buffer, position: int) -> None:
        """Keep the batch that stands at `position` of `segment`, which does not write it."""
        self._held.append(Held(segment, self._entry(segment.log_name, position, data)))

    def _entry(self, name: str, position: int, data: Buffer) -> Entry:
        return Entry(self._topic_id, self._prefix + name, position, bytes(data))

    def begin(self) -> tuple[list[Entry] | None, list[Entry]]:
        """Begin a sync of all there is: entries of what is in the page cache, None where it is too
        much, and of what is held back."""
        written, self._written, self._written_bytes = self._written, [], 0
        self._held_in_sync, self._held = self._held, []
        return written, [held.entry for held in self._held_in_sync]

    def take_synced(self) -> Sequence[Held]:
        """The sync is done: return what was held back for it."""
        synced, self._held_in_sync = self._held_in_sync, []
        return synced

    def take_all(self) -> Sequence[Held]:
        """Hold nothing any more; return what was."""
        taken = [*self._held_in_sync, *self._held]
        self._held_in_sync, self._held = [], []
        return taken

    def whole_size(self, segment: Segment) -> int:
        """Return how many bytes of a segment are in its file without a hole."""
        for held in (*self._held_in_sync, *self._held):
            if held.segment is segment:
                return held.entry.position
        return segment.size

    def file_of(self, segment: Segment) -> Readable:
        """Return a segment's file, with what is held back in its place; for reading."""
        held = [one.entry for one in (*self._held_in_sync, *self._held) if one.segment is segment]
        return _Whole(segment.file, held) if held else segment.file


class _Whole:
    """A file, and what is missing in it."""

    def __init__(self, file: File, missing: Sequence[Entry]) -> None:
        self._file = file
        self._missing = missing

    def read(self, size: int, position: int) -> bytes:
        data = bytearray(self._file.read(size, position))
        for entry in self._missing:
            begin = entry.position - position
            first, end = max(begin, 0), min(begin + len(entry.data), size)
            if first < end:
                data.extend(bytes(max(0, first - len(data))))
                data[first:end] = entry.data[first - begin : end - begin]
        return bytes(data)
