"""The journal: small appends to many files, made durable by one write to one file.

A sync of an appended file also writes its new size, and each file needs a sync of its own. So what
a group commit covers goes here as one record, over blocks that the journal already has, and that
record is synced alone. The partitions' own files get the same bytes through the page cache, and are
synced later: at the latest when the journal is full. It then begins a new round at its first byte.

A record is there whole or not at all, over all files that its entries are for. So an entry may be
kept from its own file until the record is durable (`Sync.held`), and a crash cannot leave a part of
what belongs together: a decision and its markers.

    <directory>/.magnetar-journal    records, one after another, then the rest of an earlier round
      bytes 0-10  seal                 magic "MGNJ", version 1, CRC-32C over bytes 10 to the end
           10-14  bytes from here on   int32
           14-22  generation           int64, one more in each round
           22-30  number               int64, of the record in its round, from 0
                  entries, each: topic id 16 bytes, position int64, bytes of path int16, bytes of
                  data int32, the path below the directory, the data

After an unclean stop, before any log is opened, all entries are written to their files again and
everything is synced (`replay_journal`). Files that are gone, and those of a partition with another
topic id, are passed over. An entry's bytes never change in its file, except when the cleaner
exchanges segments, and the journal is emptied before that (`GroupCommit.settle`). So a file with
other bytes there was written by another broker, a Kafka that went on from here and was killed too.
It is passed over as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from logstore.disk.files import Buffer, File, FileSystem
from logstore.disk.sealed import BODY_AT, BrokenSeal, Seal

JOURNAL = ".magnetar-journal"
#: The records of one round go up to here; a larger record has a round of its own.
CAPACITY_BYTES = 16 * 1024 * 1024
#: More bytes than this in one sync are quicker to sync in their files than to write twice.
JOURNALED_BYTES_MAX = 32 * 1024
#: After so many bytes their own files are synced too, while no append waits for it.
FLUSH_BYTES = 1024 * 1024
#: The file grows by so many zeros at once, so that most records go over blocks that it has.
_GROWTH = bytes(1024 * 1024)

_SEAL = Seal(b"MGNJ", 1)
_RECORD = Struct(">iqq")
_ENTRY = Struct(">16sqhi")
_NO_TOPIC_ID = bytes(16)


class Entry(NamedTuple):
    """Bytes that stand, or will stand, in a file."""

    topic_id: bytes
    #: Below the data directory: the partition's directory and the file's name.
    path: str
    position: int
    data: Buffer


def entry_id(topic_id: UUID | None) -> bytes:
    """Return a topic id as it stands in an entry."""
    return _NO_TOPIC_ID if topic_id is None else topic_id.bytes


class Journal:
    """The journal of one data directory. One call at a time, in any thread."""

    def __init__(
        self, files: FileSystem, directory: str, *, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        """Make the file if it is missing. Its name is durable after a sync of the directory."""
        self._files = files
        self._path = f"{directory}/{JOURNAL}"
        #: Pinned.
        self.file: File = files.open(self._path, create=True)
        self.file.pin()
        self._capacity_bytes = capacity_bytes
        self._reserved = 0  # bytes that the file has
        self._position = 0
        self._generation = 1
        self._number = 0
        self._flushed = 0
        #: Whether so much was written that the files should be synced beside the journal: little by
        #: little, not all of it at the end of the round.
        self.is_flush_due = False

    @property
    def size(self) -> int:
        """Bytes of this round's records."""
        return self._position

    def write(self, entries: Iterable[Entry]) -> bool:
        """Write `entries` to the page cache: durable, all of them or none, once `file` is synced.

        Returns False, and writes nothing, where the file has to grow or to begin anew: use
        `append`. Each entry is in its file's page cache already, or will be before the next call.
        Raises OSError: final.
        """
        record = _encode(self._generation, self._number, entries)
        end = self._position + len(record)
        if end > self._reserved or end > self._capacity_bytes:
            return False
        self.file.write((record,), self._position)
        self._position = end
        self._number += 1
        self.is_flush_due = end - self._flushed >= FLUSH_BYTES
        return True

    def append(self, entries: Iterable[Entry]) -> None:
        """Write `entries`, durable on return. Blocks: call it in a thread."""
        record = _encode(self._generation, self._number, entries)
        if self._position and self._position + len(record) > self._capacity_bytes:
            self._files.sync_all()
            self.restart()
            # Once more: the record carries the number of the round that it is in.
            record = _encode(self._generation, self._number, entries)
        end = self._position + len(record)
        self._reserve(end)
        self.file.write((record,), self._position)
        self._position = end
        self._number += 1
        self.file.sync()

    def restart(self) -> None:
        """Begin a new round: everything that was appended is durable in its own file too."""
        self._generation += 1
        self._position = self._number = self._flushed = 0
        self.is_flush_due = False

    def note_flush(self) -> None:
        """The files of all entries so far are being synced beside the journal."""
        self._flushed = self._position
        self.is_flush_due = False

    def close(self) -> None:
        """Close the file, as it is."""
        self.file.unpin()
        self.file.close()

    def _reserve(self, end: int) -> None:
        if self._reserved < end:
            while self._reserved < end:
                self.file.write((_GROWTH,), self._reserved)
                self._reserved += len(_GROWTH)
            self.file.sync()


def replay_journal(
    files: FileSystem, directory: str, topic_id_of: Callable[[str], UUID | None]
) -> int:
    """Write what the journal holds to the files again, durably. Return how many entries it wrote.

    `topic_id_of` reads the topic id in a partition's directory. Blocks; raises OSError.
    """
    try:
        journal = files.open(f"{directory}/{JOURNAL}")
    except FileNotFoundError:
        return 0
    try:
        data = journal.read(journal.size(), 0)
        found = _by_file(data, topic_id_of)
        if found:
            # After a kill or a failed sync a record may be in memory only. Its files must not get
            # to the disk before it: a power loss between could leave a part of them.
            journal.write((data,), 0)
            journal.sync()
    finally:
        journal.close()
    written = 0
    for path, entries in found.items():
        with suppress(FileNotFoundError):  # Trimmed since, or deleted with its topic.
            if _write_again(files, f"{directory}/{path}", entries):
                written += len(entries)
    if written:
        files.sync_all()
    return written


def remove_journal(files: FileSystem, directory: str) -> None:
    """Delete the journal, if there is one, once nothing in it is needed. Not synced."""
    path = f"{directory}/{JOURNAL}"
    if files.exists(path):
        files.unlink(path)


def read_entries(data: bytes) -> Iterator[Entry]:
    """Yield the entries of all records up to the first that is torn or of an earlier round."""
    position, expected = 0, None
    while (record := _record_at(data, position)) is not None:
        size, generation, number = _RECORD.unpack_from(record, BODY_AT)
        if expected is None:
            expected = (generation, 0)
        if (generation, number) != expected:
            return
        yield from _entries(record)
        expected = (generation, number + 1)
        position += BODY_AT + size


def _record_at(data: bytes, position: int) -> bytes | None:
    head = position + BODY_AT + _RECORD.size
    if head > len(data):
        return None
    (size, _, _) = _RECORD.unpack_from(data, position + BODY_AT)
    record = data[position : position + BODY_AT + size]
    if size < _RECORD.size or len(record) < BODY_AT + size:
        return None
    try:
        _SEAL.check(record)
    except BrokenSeal:
        return None
    return record


def _encode(generation: int, number: int, entries: Iterable[Entry]) -> bytes:
    parts: list[Buffer] = [b""]  # the first is the record's head, whose size comes last
    size = _RECORD.size
    for topic_id, path, position, data in entries:
        name = path.encode()
        parts.append(_ENTRY.pack(topic_id, position, len(name), len(data)))
        parts.append(name)
        parts.append(data)
        size += _ENTRY.size + len(name) + len(data)
    parts[0] = _RECORD.pack(size, generation, number)
    return _SEAL.sealed(b"".join(parts))


def _entries(record: bytes) -> Iterator[Entry]:
    at = BODY_AT + _RECORD.size
    while at < len(record):
        topic_id, position, name_size, data_size = _ENTRY.unpack_from(record, at)
        at += _ENTRY.size
        path = record[at : at + name_size].decode()
        at += name_size
        yield Entry(topic_id, path, position, record[at : at + data_size])
        at += data_size


def _by_file(data: bytes, topic_id_of: Callable[[str], UUID | None]) -> dict[str, list[Entry]]:
    """Return each file's entries, in order, of the partitions that have the same topic id still."""
    found: dict[str, list[Entry]] = {}
    topic_ids: dict[str, bytes | None] = {}
    for entry in read_entries(data):
        name = entry.path.partition("/")[0]
        if name not in topic_ids:
            topic_ids[name] = _stored_id(topic_id_of, name)
        if topic_ids[name] == entry.topic_id:
            found.setdefault(entry.path, []).append(entry)
    return found


def _stored_id(topic_id_of: Callable[[str], UUID | None], name: str) -> bytes | None:
    """Return the topic id as an entry has it; None: there is no such partition."""
    try:
        return entry_id(topic_id_of(name))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_again(files: FileSystem, path: str, entries: Iterable[Entry]) -> bool:
    """Write the entries of one file. False, and nothing is written: other bytes stand there."""
    file = files.open(path)
    try:
        pieces = _joined(entries)
        if not all(_may_stand(file.read(len(data), at), data) for at, data in pieces):
            return False
        for position, data in pieces:
            file.write((data,), position)
        return True
    finally:
        file.close()


def _joined(entries: Iterable[Entry]) -> list[tuple[int, bytes]]:
    """Return positions and bytes, entries that follow one another joined."""
    found: list[tuple[int, list[Buffer]]] = []
    end = -1
    for entry in entries:
        if entry.position != end:
            found.append((entry.position, []))
        found[-1][1].append(entry.data)
        end = entry.position + len(entry.data)
    return [(position, b"".join(pieces)) for position, pieces in found]


def _may_stand(found: bytes, data: bytes) -> bool:
    """Whether a file has the entry's bytes, or what a power loss has left of them."""
    if data.startswith(found):
        return True
    return all(one in (0, other) for one, other in zip(found, data, strict=False))
