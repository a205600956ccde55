"""The journal: small appends to many files, made durable by one write to one file.

A sync of an appended file also writes its new size, and each file needs a sync of its own. So what
a group commit covers goes here as one record, over blocks that the journal already has, and that
record is synced alone. The partitions' own files get the same bytes through the page cache, and are
synced later: at the latest when the journal is full. It then begins a new round at its first byte.

A record is there whole or not at all, over all files that its entries are for. So an entry may be
kept from its own file until the record is durable (`Sync.held`), and a crash cannot leave a part of
what belongs together: a decision and its markers.

    <directory>/.magnetar-journal
      bytes 0-10    seal          magic "MGNJ", version 2, CRC-32C over bytes 10 to 18
           10-18    generation    int64: of this round, or, while a new round begins, of the next
           18-512   zeros: the header has a sector to itself
      records from byte 512 on, one after another, then the rest of an earlier round:
      bytes 0-10    seal          magic "MGNR", version 2, CRC-32C over bytes 10 to the end
           10-14    bytes from here on   int32
           14-22    generation    int64, one more in each round
           22-30    number        int64, of the record in its round, from 0
                    entries, each: topic id 16 bytes, position int64, bytes of path int16, bytes of
                    data int32, the path below the directory, the data

The entries hold what clients send, and the rest of an earlier round lies behind the records. So a
client could place bytes there that look like the next record. The generation keeps them out: each
journal begins with a random one of 62 bits, which no client learns.

A record is written once the one before it is durable. So a torn record is the last one of its
round, unless the disk has lost or changed what was synced. The header tells a torn first record
from a damaged one: it gets the next generation before the sync that ends a round.

What an unclean start does with the entries: `logstore.directory.journal_replay`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from logstore.disk.files import Buffer, File, FileSystem
from logstore.disk.room import FULL
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

_MAGIC = b"MGNR"
_HEADER_MAGIC = b"MGNJ"
_VERSION = 2
_HEADER_SEAL = Seal(_HEADER_MAGIC, _VERSION)
_SEAL = Seal(_MAGIC, _VERSION)
#: The random part of a generation. It rises by one a round, and stays an int64.
GENERATION_BITS = 62
_GENERATION = Struct(">q")
_HEADER_SIZE = BODY_AT + _GENERATION.size
#: Where the records begin: the header has a sector to itself, which no record's write can tear.
RECORDS_AT = 512
_RECORD = Struct(">iqq")
_ENTRY = Struct(">16sqhi")
_NO_TOPIC_ID = bytes(16)
#: A partition's directory, and a file in it to which batches or aborted transactions are appended.
_PATH = re.compile(rb"[^/\0]+-[0-9]{1,10}/[0-9]{20}\.(?:log|txnindex)")


class JournalDamaged(Exception):
    """A journal lacks what had been made durable. Says what to do."""


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
        self,
        files: FileSystem,
        directory: str,
        generation: int,
        *,
        capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:
        """Make the file, which is missing. Its name is durable after a sync of the directory.

        `generation` is random, with `GENERATION_BITS` bits.
        """
        self._files = files
        self._path = f"{directory}/{JOURNAL}"
        #: Pinned until `close`.
        self.file: File = files.open(self._path, create=True)
        self.file.pin()
        self._capacity_bytes = capacity_bytes
        self._reserved = RECORDS_AT  # bytes that the file has
        self._generation = generation
        self._position = self._flushed = RECORDS_AT
        self._number = 0
        #: Whether the files of the entries should be synced now, beside the appends. So they are
        #: synced little by little, and not all at the end of the round.
        self.is_flush_due = False
        # Durable before the first record: the file has to grow for that record, and is synced.
        self._write_header()

    def _write_header(self) -> None:
        self.file.write((_HEADER_SEAL.sealed(_GENERATION.pack(self._generation)),), 0)

    @property
    def size(self) -> int:
        """Where this round's records end."""
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
        if self._number and self._position + len(record) > self._capacity_bytes:
            self.begin_round()
            # Once more: the record carries the number of the round that it is in.
            record = _encode(self._generation, self._number, entries)
        end = self._position + len(record)
        try:
            self._reserve(end)
        except OSError as error:
            # The disk is full: begin a new round, over the blocks that the file has.
            if error.errno not in FULL or RECORDS_AT + len(record) > self._reserved:
                raise
            self.begin_round()
            record = _encode(self._generation, self._number, entries)
            end = self._position + len(record)
        self.file.write((record,), self._position)
        self._position = end
        self._number += 1
        self.file.sync()

    def begin_round(self) -> None:
        """Make everything durable in its own file, and begin a new round. Blocks: as `append`."""
        self._generation += 1
        # Before the sync: once records of this round are there, the header names it.
        self._write_header()
        self._files.sync_all()
        self._position = self._flushed = RECORDS_AT
        self._number = 0
        self.is_flush_due = False

    def note_flush(self) -> None:
        """Note that the files of all entries so far are being synced."""
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


def remove_journal(files: FileSystem, directory: str) -> None:
    """Delete the journal, if there is one, once nothing in it is needed. Not synced."""
    path = f"{directory}/{JOURNAL}"
    if files.exists(path):
        files.unlink(path)


class Contents(NamedTuple):
    """What the records of the last round hold."""

    entries: list[Entry]
    #: Positions of damaged records that have whole records of the same round behind them.
    damaged_at: list[int]


def refusal_of_build(data: bytes) -> str | None:
    """Return why this build cannot read a journal that begins with `data`; None: it can."""
    version = int.from_bytes(data[4:6], "big")
    # 0: a torn header.
    if not data.startswith(_HEADER_MAGIC) or version in (0, _VERSION):
        return None
    build = "an earlier" if version < _VERSION else "a newer"
    return (
        f"it was written by {build} build of magnetar. Start that build once and stop it with"
        " SIGTERM; then this one needs no journal"
    )


def read_journal(data: bytes) -> Contents:
    """Return what is in a journal's file. A torn record at the end is no damage.

    Raises JournalDamaged for the journal of another build.
    """
    if (refusal := refusal_of_build(data)) is not None:
        raise JournalDamaged(refusal)
    contents = Contents([], [])
    header, first = _generation_of_header(data), _generation_of_first_record(data)
    generation = header if first is None else first
    # The header may name the next round already. Then a record behind a torn one tells nothing: the
    # next round has begun to write over this one, which nothing needs any more.
    is_last_round = header is None or header == generation
    position, number = RECORDS_AT, 0
    if generation is None:
        # The header is durable before the first record is. Without records none was made durable.
        if data.find(_MAGIC, RECORDS_AT) >= 0:
            contents.damaged_at.append(0)
        return contents
    while True:
        found = _entries_at(data, position, generation, number)
        if found is not None:
            entries, position = found
            contents.entries.extend(entries)
            number += 1
            continue
        later = _later_record(data, position, generation, number) if is_last_round else None
        if later is None:
            return contents
        contents.damaged_at.append(position)
        position, number = later


def _generation_of_header(data: bytes) -> int | None:
    if len(data) < _HEADER_SIZE:
        return None  # Cut off where nothing is sealed, it would pass for whole.
    try:
        _HEADER_SEAL.check(data[:_HEADER_SIZE])
    except BrokenSeal:
        return None
    return int(_GENERATION.unpack_from(data, BODY_AT)[0])


def _generation_of_first_record(data: bytes) -> int | None:
    """Return the generation of the first record, if that is whole. No client's bytes get there."""
    if RECORDS_AT + BODY_AT + _RECORD.size > len(data):
        return None
    generation = int(_RECORD.unpack_from(data, RECORDS_AT + BODY_AT)[1])
    return None if _entries_at(data, RECORDS_AT, generation, 0) is None else generation


def _later_record(
    data: bytes, position: int, generation: int, number: int
) -> tuple[int, int] | None:
    """Return position and number of the next whole record of this round behind a damaged one."""
    # The generation is looked at first, and no client knows it: so what clients have sent costs no
    # checksums.
    while (position := data.find(_MAGIC, position + 1)) >= 0:
        if position + BODY_AT + _RECORD.size > len(data):
            return None
        _, its_generation, its_number = _RECORD.unpack_from(data, position + BODY_AT)
        if (
            its_generation == generation
            and its_number >= number
            and _entries_at(data, position, generation, its_number) is not None
        ):
            return position, its_number
    return None


def _entries_at(
    data: bytes, position: int, generation: int, number: int
) -> tuple[list[Entry], int] | None:
    """Return the entries of a record, and where it ends; None: that record is not there whole."""
    head = position + BODY_AT + _RECORD.size
    if head > len(data):
        return None
    size, *found = _RECORD.unpack_from(data, position + BODY_AT)
    record = data[position : position + BODY_AT + size]
    if found != [generation, number] or size < _RECORD.size or len(record) < BODY_AT + size:
        return None
    try:
        _SEAL.check(record)
        return _entries(record), position + len(record)
    except BrokenSeal:
        return None


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


def _entries(record: bytes) -> list[Entry]:
    """Return a sealed record's entries. Raises BrokenSeal for a path that no ledger writes to."""
    entries = []
    at = BODY_AT + _RECORD.size
    while at < len(record):
        topic_id, position, name_size, data_size = _ENTRY.unpack_from(record, at)
        at += _ENTRY.size
        path = record[at : at + name_size]
        if not _PATH.fullmatch(path):
            raise BrokenSeal(f"it names {path!r}")
        at += name_size
        entries.append(Entry(topic_id, path.decode(), position, record[at : at + data_size]))
        at += data_size
    return entries
