"""A start after a crash writes each entry of the journal to its file again, durably.

Entries are left out if their partition is gone or has another topic id, or if their segment is
gone. All other entries are written, over anything that a power loss has left in their place. There
is one exception: another broker, such as Kafka, has used the directory meanwhile and was killed
too. That broker cut the log at a batch that it found torn, and wrote its own batches there. So the
entries of a segment are compared with the segment, from the first batch on. If a valid batch stands
there that is not the entry's, or if no batch begins at the entry's position (the other broker's
compaction has moved all batches), the rest of this segment's entries is left out. In no other case
does an entry's batch change in its file: the journal is emptied before our own cleaner exchanges
segments (`GroupCommit.settle`).

A log that ends before its last entry lacks acknowledged records. `Replayed.ends` says where each
log must end. A damaged record with whole records behind it is worse. It may have held a decision
and its markers, and a replay of the other records would separate these. So the broker does not
start then (docs/decisions/0023-damaged-journal.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from uuid import UUID

from logstore.disk.barriers import Barrier, sync_barriers
from logstore.disk.files import Buffer, File, FileSystem
from logstore.segments.batch_recovery import resume
from logstore.segments.names import BASE_OFFSET_DIGITS, LOG_SUFFIX
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import scan
from logstore.sync.journal import JOURNAL, Entry, JournalDamaged, entry_id, read_journal
from wire.records import BatchHeader, crc_ok, iterate_batches
from wire.records.header import MAGIC

#: The most bytes of entries that are compared with their file, and written, at once.
_JOINED_BYTES_MAX = 1 << 20


class Replayed(NamedTuple):
    """What a replay has found and done."""

    #: The number of entries that were written.
    written: int = 0
    #: Where the last batch in the journal ends, by the name of the log's directory and topic id.
    ends: dict[tuple[str, bytes], int] = {}
    #: The `.log` files in which another broker's batches stand, below the data directory.
    foreign: tuple[str, ...] = ()
    #: The bytes of the journal at which damaged records begin.
    damaged_at: tuple[int, ...] = ()
    #: Directories of partitions without a topic id. Their entries are not written, since these may
    #: be of an earlier topic of the same name.
    unknown: tuple[str, ...] = ()

    def end_of(self, name: str, topic_id: UUID | None) -> int:
        """Return where the last batch in the journal ends of the log of that directory; 0: none."""
        return self.ends.get((name, entry_id(topic_id)), 0)


class _SegmentEntries(NamedTuple):
    """The entries for one segment, by position."""

    batches: list[Entry]
    aborted: list[Entry]


def replay_journal(
    files: FileSystem,
    directory: str,
    topic_id_of: Callable[[str], UUID | None],
    *,
    accepts_damage: bool = False,
) -> Replayed:
    """Write the journal's entries to their files again, durably.

    `topic_id_of` reads the topic id in a partition's directory. `accepts_damage`: leave damaged
    records out. Otherwise raises JournalDamaged before anything is written. Raises OSError. Blocks.
    """
    path = f"{directory}/{JOURNAL}"
    try:
        journal = files.open(path)
    except FileNotFoundError:
        return Replayed()
    try:
        data = journal.read(journal.size(), 0)
        try:
            entries, damaged_at = read_journal(data)
        except JournalDamaged as damaged:
            raise JournalDamaged(f"{path}: {damaged}.") from None
        if damaged_at and not accepts_damage:
            raise JournalDamaged(_refusal(path, damaged_at[0]))
        if entries:
            # After a kill or a failed sync a record may be in memory only. It must be on the disk
            # before its files are: otherwise a power loss could leave only some of the files.
            journal.write((data,), 0)
            journal.sync()
    finally:
        journal.close()
    replay = _Replay(files, directory)
    segments, unknown = _by_segment(entries, partial(_stored_id, files, directory, topic_id_of))
    replay.perform(segments)
    foreign = tuple(replay.foreign)
    return Replayed(replay.written, _ends(entries), foreign, tuple(damaged_at), tuple(unknown))


def _refusal(path: str, position: int) -> str:
    return (
        f"{path}: the record at byte {position} is damaged, but later ones are whole, so the disk"
        " has lost or changed what was synced. Acknowledged records may be lost, and transactions"
        " torn. Check the disk; restore the data directory from a copy if there is one. To start"
        " with what is left, set journal.damage.accept=true for one start."
    )


class _Replay:
    """One run over the segments that the journal has entries for."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        #: Written to, and open until they are synced.
        self._dirty: list[File] = []
        self.written = 0
        self.foreign: list[str] = []

    def perform(self, segments: dict[tuple[str, int], _SegmentEntries]) -> None:
        """Write the entries, and make them durable. Raises OSError."""
        try:
            for (name, base_offset), entries in segments.items():
                with suppress(FileNotFoundError):  # Trimmed since.
                    self._write_segment(name, base_offset, entries)
            if self._dirty:
                sync_barriers(self._files, (Barrier(self._dirty),))
        finally:
            for file in self._dirty:
                file.close()

    def _write_segment(self, name: str, base_offset: int, entries: _SegmentEntries) -> None:
        if entries.batches and not self._write_batches(name, base_offset, entries.batches):
            self.foreign.append(entries.batches[0].path)
            return
        for entry in entries.aborted:
            # An aborted transaction belongs to a marker that is among the batches. Where the marker
            # does not get to the log, recovery takes this entry away again.
            file = self._files.open(f"{self._directory}/{entry.path}")
            self._dirty.append(file)
            file.write((entry.data,), entry.position)
            self.written += 1

    def _write_batches(self, name: str, base_offset: int, entries: list[Entry]) -> bool:
        """Write the batches to their segment. False: the segment has batches of another broker."""
        segment = Segment(self._files, f"{self._directory}/{name}", base_offset)
        file = segment.file
        self._dirty.append(file)
        first = BatchHeader.parse(entries[0].data)
        end = resume(segment, file.size(), first.base_offset)
        for position, count, data in _joined(entries):
            end = _end_of_batches(file, end, position)
            if end != position:
                # Short of it: the file lacks what was durable, and recovery ends the log there.
                return end < position
            if file.read(len(data), end) == data:
                # Written all the same: after a failed sync it may be in memory alone.
                file.write((data,), end)
                end += len(data)
            else:
                for header, batch in iterate_batches(data):
                    if _stands_another(file, end, header):
                        return False
                    file.write((batch,), end)
                    end += len(batch)
            self.written += count
        return True


def _end_of_batches(file: File, position: int, stop: int) -> int:
    """Return where the first batch begins that does not end before `stop`, or where none follows.

    A batch begins at `position`, or follows there.
    """
    if position < stop:
        for at, header, _ in scan(file, position, file.size(), whole=False):
            if at >= stop:
                return at
            position = at + header.size_bytes
    return position


def _stands_another(file: File, position: int, ours: BatchHeader) -> bool:
    """Whether a valid batch stands there that is not `ours`.

    By the CRC: place and epoch lie before it, and may be torn although all the rest is there.
    """
    for _, header, batch in scan(file, position, file.size(), whole=True):
        return header.magic == MAGIC and header.crc != ours.crc and crc_ok(batch)
    return False


def _by_segment(
    entries: Iterable[Entry], stored_id_of: Callable[[str], bytes | None]
) -> tuple[dict[tuple[str, int], _SegmentEntries], list[str]]:
    """Return the entries of each segment, of the partitions that have the same topic id still; and
    the partitions that are there and have none, though their entries have one."""
    found: dict[tuple[str, int], _SegmentEntries] = {}
    unknown: dict[str, None] = {}
    #: By path and topic id: the entries of a file, None where none of them is written.
    of_files: dict[tuple[str, bytes], list[Entry] | None] = {}
    topic_ids: dict[str, bytes | None] = {}
    for entry in entries:
        file = entry.path, entry.topic_id
        if file not in of_files:
            name, _, file_name = entry.path.partition("/")
            if name not in topic_ids:
                topic_ids[name] = stored_id_of(name)
            if topic_ids[name] == entry_id(None) != entry.topic_id:
                unknown[name] = None
            of_files[file] = None
            if topic_ids[name] == entry.topic_id:
                key = name, int(file_name[:BASE_OFFSET_DIGITS])
                segment = found.setdefault(key, _SegmentEntries([], []))
                is_log = file_name.endswith(LOG_SUFFIX)
                of_files[file] = segment.batches if is_log else segment.aborted
        gathered = of_files[file]
        if gathered is not None:
            gathered.append(entry)
    for segment in found.values():
        # In the journal, entries that were held back stand behind entries of later positions.
        segment.batches.sort(key=_position)
    return found, list(unknown)


def _joined(entries: Iterable[Entry]) -> Iterator[tuple[int, int, Buffer]]:
    """Yield the position and the bytes of entries that follow one another in a file, and how many
    they are; in the order of their positions. At most `_JOINED_BYTES_MAX` are joined."""
    parts: list[Buffer] = []
    start = end = 0
    for entry in entries:
        size = len(entry.data)
        if parts and (entry.position != end or end + size - start > _JOINED_BYTES_MAX):
            yield start, len(parts), b"".join(parts)
            parts = []
        if not parts:
            start = end = entry.position
        parts.append(entry.data)
        end += size
    if parts:
        yield start, len(parts), b"".join(parts)


def _position(entry: Entry) -> int:
    return entry.position


def _ends(entries: Iterable[Entry]) -> dict[tuple[str, bytes], int]:
    """Return where each log's last batch in the journal ends, gone or not."""
    last: dict[tuple[str, bytes], Entry] = {}
    for entry in entries:
        key = entry.path, entry.topic_id
        known = last.get(key)
        if known is None or known.position < entry.position:
            last[key] = entry
    ends: dict[tuple[str, bytes], int] = {}
    for path, topic_id in last:
        if path.endswith(LOG_SUFFIX):
            log = path.partition("/")[0], topic_id
            for header, _ in iterate_batches(last[path, topic_id].data):
                ends[log] = max(ends.get(log, 0), header.next_offset)
    return ends


def _stored_id(
    files: FileSystem, path: str, topic_id_of: Callable[[str], UUID | None], name: str
) -> bytes | None:
    """Return the topic id as an entry has it; None: there is no such partition."""
    # A topic that was deleted has left no directory of that name, and nothing to tell of it.
    if not files.exists(f"{path}/{name}"):
        return None
    try:
        return entry_id(topic_id_of(name))
    except NotADirectoryError:
        return None
