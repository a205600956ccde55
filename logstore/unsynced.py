"""What a ledger in files has appended since the last sync began, as the journal would have it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from logstore.journal import Entry, entry_id
from logstore.ledger import Buffer
from logstore.segment import Segment
from wire.records import BatchHeader

#: More than this in one sync is better synced in its own file than written twice.
JOURNALED_BYTES_MAX = 32 * 1024


class Held(NamedTuple):
    """A batch that has its place in a segment, and is to be written there later."""

    segment: Segment
    end_offset: int
    entry: Entry
    #: Not before the journal has it; otherwise it waits for one before it alone.
    is_atomic: bool

    def write(self) -> None:
        """Write it to its file. Raises OSError."""
        self.segment.write_held(self.entry.data, self.entry.position)


class Unsynced:
    """The appends of one ledger: those in the page cache, and those held back from it."""

    def __init__(self, directory: str, topic_id: UUID | None) -> None:
        self._topic_id = entry_id(topic_id)
        self._prefix = f"{os.path.basename(directory)}/"
        self._written: list[Entry] | None = []
        self._written_bytes = 0
        self.held: list[Held] = []
        #: What the sync under way makes durable.
        self.held_in_sync: list[Held] = []

    @property
    def is_holding(self) -> bool:
        """Whether something is held back: what follows it is too, or a file would have a hole."""
        return bool(self.held or self.held_in_sync)

    def note_written(self, name: str, position: int, data: Buffer) -> None:
        """`data` was written to the file of that name."""
        if self._written is not None:
            self._written_bytes += len(data)
            if self._written_bytes > JOURNALED_BYTES_MAX:
                self._written = None
            else:
                self._written.append(self._entry(name, position, data))

    def hold(self, segment: Segment, data: Buffer, position: int, *, is_atomic: bool) -> None:
        """Keep the batch for which `segment` has made room at `position`, its end."""
        entry = self._entry(segment.log_name, position, data)
        self.held.append(Held(segment, segment.next_offset, entry, is_atomic))

    def _entry(self, name: str, position: int, data: Buffer) -> Entry:
        return Entry(self._topic_id, self._prefix + name, position, bytes(data))

    def begin(self) -> tuple[list[Entry] | None, list[Entry]]:
        """Begin a sync of all there is: entries of what is in the page cache, None where it is too
        much, and of what is held back."""
        written, self._written, self._written_bytes = self._written, [], 0
        self.held_in_sync, self.held = self.held, []
        return written, [held.entry for held in self.held_in_sync]

    def take_released(self) -> tuple[list[Held], list[Held]]:
        """The sync is done: return what may be written now, made durable by it; and what has only
        waited for that, of which the next sync has to know."""
        durable, self.held_in_sync = self.held_in_sync, []
        count = 0
        while count < len(self.held) and not self.held[count].is_atomic:
            count += 1
        followers, self.held = self.held[:count], self.held[count:]
        return durable, followers

    def drop(self) -> list[Held]:
        """Hold nothing any more; return what was."""
        dropped = [*self.held_in_sync, *self.held]
        self.held_in_sync, self.held = [], []
        return dropped

    def batches_held(self, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield what is held back from the batch on that contains `offset`."""
        for held in (*self.held_in_sync, *self.held):
            if held.end_offset > offset:
                yield BatchHeader.parse(held.entry.data), memoryview(held.entry.data)
