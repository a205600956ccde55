"""Reads of a store whose old chunks lie in objects: they follow the references.

Chunks are moved to objects in the background (`logstore.remote.offload`), so no commit ever waits
for an object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from logstore.remote.commit_store import (
    Chunk,
    LogKey,
    StoredLog,
    StoredLogs,
    StoreUnavailable,
    Wanted,
)
from logstore.remote.object_store import NoSuchObject, ObjectStore, ObjectsUnavailable
from logstore.remote.references import Reference, decode, is_reference
from wire.records.header import BATCH_LENGTH_MIN, BATCH_OVERHEAD, LENGTH_OVERHEAD, read_span

#: How many objects one read, or the load of one log, reads at the same time.
_AT_ONCE = 8
#: How many reads of clients may wait for objects at the same time. Each brings a MiB or two,
#: however little its client asks for, and all may arrive together. Further ones wait; a load never
#: does.
_READS_MAX = 64
#: How many objects one read of a client may need. A topic that gets little has an object for every
#: ten minutes, and a client that waits for a thousand of them may give up, and ask again.
_OBJECTS_OF_READ = 64
#: How often the rows are read where an object is gone: the cleaner has replaced it meanwhile.
_LOOKS_MAX = 3


class BulkStore:
    """The logs of rows and objects: batches in place of the references that `rows` has."""

    def __init__(
        self,
        rows: StoredLogs,
        objects: ObjectStore | None,
        on_unread: Callable[[LogKey, str], None] = lambda key, reason: None,
    ) -> None:
        """`objects`: None for a cluster that has none, and so no references.

        `on_unread` is told that clients cannot read a log, and why: once, until they can. Of a
        store that is away it is told for the first log alone.
        """
        self._rows = rows
        self._objects = objects
        self._on_unread = on_unread
        #: The logs of which an object is missing, as the last read of a client has found out. They
        #: may have left since.
        self._unread: set[LogKey] = set()
        #: Whether `on_unread` was told that the store is away, which has answered no read since.
        self._is_away_told = False
        self._reading = asyncio.Semaphore(_READS_MAX)
        #: Why the object store did not answer a load. Empty: it has answered since.
        self.away = ""

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        """As `StoredLogs.load`. A log whose objects cannot be read is `away`; others are whole.

        Once the object store has not answered, it is not asked for later logs, each of which would
        take seconds. `look_again` asks it.
        """
        stored = await self._rows.load(wanted)
        self._unread.difference_update(one.key for one in wanted)
        moved = [at for at, log in enumerate(stored) if _has_moved(log)]
        # One alone first: if the store does not answer it, the others are not asked for.
        for some in (moved[:1], moved[1:]):
            loading = (self._whole(wanted[at], stored[at], away=self.away) for at in some)
            for at, log in zip(some, await asyncio.gather(*loading), strict=True):
                stored[at] = log
        return stored

    async def look_again(self, wanted: Wanted) -> str:
        """Ask for the objects of a log that was away; return why it still is, "" if it is not.

        Afterwards `self.away` says whether the store answers for other logs. Raises
        StoreUnavailable.
        """
        (stored,) = await self._rows.load([wanted])
        found = await self._whole(wanted, stored, away="")
        if not found.away:
            self.away = ""
        return found.away

    async def _whole(self, wanted: Wanted, stored: StoredLog, *, away: str) -> StoredLog:
        """Return a log with batches in place of references, or one that is away.

        `away`: why the object store is not to be asked; "" asks it. Raises StoreUnavailable.
        """
        for _ in range(_LOOKS_MAX):
            if not _has_moved(stored):
                return stored
            if away:
                break
            try:
                return stored._replace(chunks=await self._followed(stored.chunks))
            except NoSuchObject as gone:
                missing = str(gone)
            except StoreUnavailable as unavailable:
                away = self.away = str(unavailable)
                break
            (stored,) = await self._rows.load([wanted])
        return StoredLog(away=away or missing)

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        """As `StoredLogs.read`. It may end before `max_bytes`, so as to read few objects."""
        for _ in range(_LOOKS_MAX):
            found = _within(await self._rows.read(key, offset, max_bytes, end_offset), max_bytes)
            if not any(is_reference(chunk.data) for chunk in found):
                return found
            try:
                async with self._reading:
                    followed = await self._followed(found)
                self._unread.discard(key)
                self._is_away_told = False
                return followed
            except NoSuchObject as gone:
                missing = str(gone)
            except StoreUnavailable as away:
                self._note_unread(key, str(away), is_alone=False)
                raise
        self._note_unread(key, missing, is_alone=True)
        raise StoreUnavailable(missing)

    def _note_unread(self, key: LogKey, reason: str, *, is_alone: bool) -> None:
        if is_alone:
            self._is_away_told = False
        if key in self._unread or self._is_away_told:
            return
        self._on_unread(key, reason)
        if is_alone:
            self._unread.add(key)
        else:
            self._is_away_told = True

    async def _followed(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return the chunks with their batches. Raises NoSuchObject, StoreUnavailable."""
        followed = [*chunks]
        elsewhere = [at for at, chunk in enumerate(chunks) if is_reference(chunk.data)]
        for first in range(0, len(elsewhere), _AT_ONCE):
            some = elsewhere[first : first + _AT_ONCE]
            found = await asyncio.gather(*(self._fetched(decode(chunks[at].data)) for at in some))
            for at, data in zip(some, found, strict=True):
                followed[at] = _checked(chunks[at]._replace(data=data), decode(chunks[at].data))
                # A MiB of small batches takes two milliseconds.
                await asyncio.sleep(0)
        return followed

    async def _fetched(self, reference: Reference) -> bytes:
        if self._objects is None:
            raise StoreUnavailable(
                "batches lie in a bucket, which this node did not know of when it started"
            )
        try:
            data = await self._objects.read(*reference)
        except ObjectsUnavailable as unavailable:
            raise StoreUnavailable(str(unavailable)) from unavailable
        except NoSuchObject:
            self.away = ""
            raise
        self.away = ""
        return data


def _has_moved(stored: StoredLog) -> bool:
    """Return whether objects have some of what is loaded."""
    return any(is_reference(chunk.data) for chunk in stored.chunks)


def _checked(chunk: Chunk, source: Reference) -> Chunk:
    """Return a chunk that came from an object. Raises NoSuchObject if it has other bytes than the
    batches that were put there.

    It compares lengths and offsets alone. With wrong ones a walk over the batches fails, and so
    would the start of a node. Consumers check the records.
    """
    data, position, offset = chunk.data, 0, chunk.base_offset
    while len(data) - position >= BATCH_OVERHEAD:
        base_offset, batch_length, last_offset_delta = read_span(data, position)
        is_next = base_offset == offset or (position > 0 and base_offset > offset)
        if not is_next or batch_length < BATCH_LENGTH_MIN or last_offset_delta < 0:
            break
        position += LENGTH_OVERHEAD + batch_length
        offset = base_offset + last_offset_delta + 1
    if position != len(data) or offset != chunk.end_offset:
        raise NoSuchObject(
            f"{source.object_key} is damaged: at byte {source.position + min(position, len(data))}"
            f" there are no batches up to offset {chunk.end_offset}"
        )
    return chunk


def _within(chunks: Sequence[Chunk], max_bytes: int) -> list[Chunk]:
    """Return the first chunk, and the next ones while their batches fit and objects are few."""
    fitting: list[Chunk] = []
    objects = _OBJECTS_OF_READ
    for chunk in chunks:
        if is_reference(chunk.data):
            objects -= 1
            max_bytes -= decode(chunk.data).size_bytes
        else:
            max_bytes -= len(chunk.data)
        if fitting and (max_bytes < 0 or objects < 0):
            break
        fitting.append(chunk)
    return fitting
