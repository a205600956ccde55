"""What a ledger in files has written since the last sync began: bytes, and names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from logstore.disk.files import Buffer, File, FileSystem
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import Readable
from logstore.sync.journal import JOURNALED_BYTES_MAX, Entry, entry_id

#: A batch that has its place in a segment, and is written there when the journal has it.
Held: TypeAlias = tuple[Segment, Entry]


class UnsyncedBytes:
    """The appends of one ledger, as journal entries: in the page cache, or held back from it.

    A later batch may be written behind one that is held back. The file then has a hole, which no
    reader of durable batches meets, and at which recovery would end the log.
    """

    def __init__(self, directory: str, topic_id: UUID | None) -> None:
        self._topic_id = entry_id(topic_id)
        self._prefix = f"{os.path.basename(directory)}/"
        self._written: list[Entry] | None = []
        self._written_bytes = 0
        #: The bytes of the last entry of `_written`, to which what is written behind them is added:
        #: the requests of hundreds of clients are one entry. Their file, and where they end in it.
        self._run = bytearray()
        self._run_name, self._run_end = "", 0
        self._held: list[Held] = []
        #: What the journal has once the sync under way is done; its ledger writes it then.
        self.held_in_sync: list[Held] = []

    def note_written(self, name: str, position: int, data: Buffer) -> None:
        """Account for `data`, which was written to the file `name`."""
        if self._written is not None:
            self._written_bytes += len(data)
            if self._written_bytes > JOURNALED_BYTES_MAX:
                self._written = None
                return
            # A copy either way: a client's buffer is used again once its request is answered.
            if position == self._run_end and name == self._run_name:
                self._run += data
            else:
                self._run, self._run_name = bytearray(data), name
                path = self._prefix + name
                entry = tuple.__new__(Entry, (self._topic_id, path, position, self._run))
                self._written.append(entry)
            self._run_end = position + len(data)

    def leave_to_files(self) -> None:
        """The next sync covers more than the journal takes: keep no entries for it."""
        self._written = None

    def hold(self, segment: Segment, data: Buffer, position: int) -> None:
        """Keep a batch whose place is `position` of `segment`. It is not written there yet."""
        path = self._prefix + segment.log_name
        # Not the constructor, which is Python: a commit may hold hundreds of markers.
        entry = tuple.__new__(Entry, (self._topic_id, path, position, bytes(data)))
        self._held.append((segment, entry))

    def begin(self) -> tuple[Sequence[Entry] | None, Sequence[Entry]]:
        """Begin a sync of everything so far.

        Returns the entries of what is in the page cache (None: too much for the journal), and of
        what is held back.
        """
        written, self._written, self._written_bytes = self._written, [], 0
        # The sync may read its entries in a thread: nothing is added to them any more.
        self._run_name = ""
        if not self._held:
            return written, ()
        self.held_in_sync, self._held = self._held, []
        return written, [entry for _, entry in self.held_in_sync]

    def take_all(self) -> Sequence[Held]:
        """Return everything held back, and hold nothing any more."""
        taken = [*self.held_in_sync, *self._held]
        self.held_in_sync, self._held = [], []
        return taken

    def whole_size(self, segment: Segment) -> int:
        """Return how many bytes of a segment are in its file without a hole."""
        for of_segment, entry in (*self.held_in_sync, *self._held):
            if of_segment is segment:
                return entry.position
        return segment.size

    def file_of(self, segment: Segment) -> Readable:
        """Return a segment's file for reading, with what is held back in its place."""
        unwritten = (*self.held_in_sync, *self._held)
        held = [entry for of_segment, entry in unwritten if of_segment is segment]
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


class UnsyncedNames:
    """The names that one log has made and not synced: its files', and that of its directory."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._parent = os.path.dirname(directory)
        #: The directory, and the one above it.
        self.both = (directory, self._parent)
        #: Whether the log's directory is there. The first write makes it.
        self.has_directory = False
        #: Directories that the next sync has to cover.
        self.dirty: set[str] = set()
        # Segments ever made: all, those that the sync covers, those with a durable name.
        self._segments_made = self._segments_in_sync = self._segments_durable = 0

    def ensure_directory(self) -> None:
        """Make the directory if it is missing. Raises OSError."""
        if not self.has_directory:
            self._files.make_directory(self._directory)
            self.has_directory = True
            self.dirty.update(self.both)

    def add(self) -> None:
        """A file in the directory has got its name."""
        self.dirty.add(self._directory)

    def add_segment(self) -> None:
        """A segment has got its name. Recovery takes a log whose first segments lack names for one
        that was trimmed, so no segment follows one whose name is not durable."""
        assert self._segments_made == self._segments_durable, "the one before may be lost"
        self._segments_made += 1
        self.add()

    @property
    def lacks_segment(self) -> bool:
        """Whether a segment's name is not durable."""
        return self._segments_durable != self._segments_made

    @property
    def is_new_directory(self) -> bool:
        """Whether the directory's own name is not durable."""
        return self._parent in self.dirty

    def begin(self) -> Sequence[str]:
        """Begin a sync of all names so far; return the directories that it has to cover."""
        self._segments_in_sync = self._segments_made
        if not self.dirty:
            return ()
        taken = sorted(self.dirty)
        self.dirty.clear()
        return taken

    def complete(self) -> None:
        """The sync is done."""
        if self._segments_durable < self._segments_in_sync:
            self._segments_durable = self._segments_in_sync

    def secured(self) -> None:
        """Everything has become durable by other ways than `begin`."""
        self._segments_durable = self._segments_made
        self.dirty.clear()

    def sync(self) -> None:
        """Make all names durable now. Blocks; raises OSError."""
        for directory in self.both:
            self._files.sync_directory(directory)
        self._segments_durable = self._segments_made
