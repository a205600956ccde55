"""Moving the older chunks of logs from rows to objects, and deleting objects that nothing names.

A commit writes rows, whatever its size, so no commit waits for an object store. Later, once 8 MiB
of a log have come together, or the oldest have waited long enough, its chunks become one object,
and references take their place in the rows by another commit. What the cleaner has put in front of
references becomes an object at once: otherwise it would hold up all chunks behind it. While the
object store does not answer, the rows stay. Nothing is lost and nothing stops, but the database
grows.

The keys of objects are unique: `logs/STORE/TOPIC ID/PARTITION/BASE-END-INCARNATION-COUNT`, where
STORE is the database's own. A node may end between the write of an object and the commit, so
objects are left that no reference names. A sweep lists the objects of its database and deletes
these. An object of a replaced incarnation goes at once, since that incarnation can commit nothing
any more. Any other object goes once two sweeps in a row have found no reference. Only references
between the offsets of its key can name an object. So a sweep takes some objects at a time, and
reads the references between their offsets alone. It deletes only when all that it has read is
proven: the database may show the removal of a reference that a fail-over takes back, and then the
object must be there. The objects of another cluster in the same bucket are never listed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import count, islice
from typing import NamedTuple
from uuid import UUID

from logstore.remote.commit_store import (
    Chunk,
    CommitStore,
    LogKey,
    Move,
    Span,
    StoreUnavailable,
)
from logstore.remote.object_store import ObjectStore
from logstore.remote.references import Reference, decode, is_reference
from logstore.remote.remote_ledger import RemoteLedger
from logstore.sync.group_commit import LedgerClosed

#: Bytes of a log that become one object; fewer once the oldest of them are old.
OBJECT_BYTES = 8 << 20
#: The fewest bytes that one reference stands for: a read fetches them together.
REFERENCE_BYTES = 1 << 20
#: How many bytes are removed from the rows before their room is made free. By itself the database
#: looks once a minute, which is a gigabyte at 20 MB/s.
RECLAIM_BYTES = 64 << 20
#: The least time between two sweeps: a node writes an object and commits its references in less.
SWEEP_INTERVAL_MS = 600_000
#: The most keys of objects that a sweep has in memory at once, and that it remembers until the next
#: sweep. A key takes about 200 bytes.
SWEPT_KEYS = 100_000
#: What the keys of all stores' objects begin with.
PREFIX = "logs"
#: The part of a key that names a log, and the offsets behind it. Other programs may write any key
#: there: no number that these find is too large for a column of the database.
_OF_LOG = re.compile(
    r".*/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{1,9})/"
    r"(?:(00[0-9]{18})-(00[0-9]{18})-[0-9]+-[0-9]+\Z)?"
)
_WRITER = re.compile(r"-([0-9]{1,18})-[0-9]+\Z")


class _Waiting(NamedTuple):
    """Chunks of a log that are too few for an object."""

    since_ms: int
    counted_to: int
    """Below this offset the rows are counted: they have `bytes`."""
    bytes: int = 0


class Offload:
    """Moves chunks of the logs that one incarnation of a node leads."""

    def __init__(
        self,
        rows: CommitStore,
        objects: ObjectStore,
        prefix: str,
        incarnation: int,
        age_ms: int,
    ) -> None:
        """`rows`: the store below any that follows references. `prefix`: what the keys of this
        store's objects begin with. `age_ms`: how long chunks may wait until they become an
        object, however few they are.
        """
        self._rows = rows
        self._objects = objects
        self._prefix = prefix
        self._age_ms = age_ms
        self._incarnation = incarnation
        #: Attributes, so that tests with few batches can lower them.
        self.object_bytes, self.reference_bytes = OBJECT_BYTES, REFERENCE_BYTES
        self._count = count()
        #: The logs whose chunks are too few for an object yet.
        self._waiting: dict[RemoteLedger, _Waiting] = {}

    async def offload(self, ledger: RemoteLedger, now_ms: int) -> bool:
        """Move some chunks of a log, if it is time; return whether more may be due at once.

        Raises StoreUnavailable, ObjectsUnavailable, StorageFailure: nothing was moved.
        """
        begin = max(ledger.moved_to, ledger.segments.base_offsets[0])
        end = ledger.durable_end_offset
        if begin >= end:
            self._waiting.pop(ledger, None)
            return False
        waiting = self._waiting.setdefault(ledger, _Waiting(now_ms, begin))
        new_bytes = ledger.batches.bytes_between(waiting.counted_to, end)
        is_old = now_ms - waiting.since_ms >= self._age_ms
        if waiting.bytes + new_bytes < self.object_bytes and not is_old:
            return False
        replacements, bases = ledger.replacements, ledger.segments.base_offsets
        chunks, is_enclosed = await self._rows_of(ledger, begin, end)
        size_bytes = sum(len(chunk.data) for chunk in chunks)
        if size_bytes < self.object_bytes and not is_enclosed and not is_old:
            # The ledger counts by whole segments what it does not have in memory. This is exact.
            self._waiting[ledger] = _Waiting(waiting.since_ms, end, size_bytes)
            return False
        is_moved = bool(chunks) and await self._move(ledger, chunks, bases, replacements)
        # Not after a failure: these chunks have waited, and are tried again.
        self._waiting.pop(ledger, None)
        return is_moved

    async def reclaim(self) -> None:
        """Free the room of removed rows, if they are many. Raises StoreUnavailable."""
        await self._rows.reclaim(RECLAIM_BYTES)

    def forget(self, is_led: Callable[[RemoteLedger], bool]) -> None:
        """Forget the logs that are not led here any more."""
        for ledger in [one for one in self._waiting if not is_led(one)]:
            del self._waiting[ledger]

    async def _rows_of(
        self, ledger: RemoteLedger, begin: int, end: int
    ) -> tuple[list[Chunk], bool]:
        """Return chunks next to one another from `begin` on, as many as one object holds, and
        whether a reference ends them: the cleaner has brought them back, and no chunk joins them.
        """
        chunks: list[Chunk] = []
        size_bytes = 0
        while begin < end and size_bytes < self.object_bytes:
            room_bytes = self.object_bytes - size_bytes
            found = await self._rows.read(ledger.key, begin, room_bytes, end)
            if not found:
                break
            for chunk in found:
                if is_reference(chunk.data):
                    if chunks:
                        return chunks, True
                    continue
                chunks.append(chunk)
                size_bytes += len(chunk.data)
            begin = found[-1].end_offset
        return chunks, False

    async def _move(
        self,
        ledger: RemoteLedger,
        chunks: Sequence[Chunk],
        bases: Sequence[int],
        replacements: int,
    ) -> bool:
        first, last = chunks[0], chunks[-1]
        object_key = (
            f"{self._prefix}/{ledger.key.topic_id}/{ledger.key.partition}"
            f"/{first.base_offset:020}-{last.end_offset:020}-{self._incarnation}-{next(self._count)}"
        )
        data = b"".join(chunk.data for chunk in chunks)
        await self._objects.put(object_key, data)
        references = referring(chunks, object_key, bases, self.reference_bytes)
        move = Move(ledger.key, first.base_offset, last.end_offset, references)
        try:
            is_moved = not ledger.is_closed and await ledger.move(move, replacements)
        except LedgerClosed:
            # The commit under way may have named the object. A sweep finds out.
            return False
        if not is_moved:
            # Nothing names it. A sweep would delete it too, only later.
            await self._objects.delete([object_key])
        return is_moved


def referring(
    chunks: Sequence[Chunk], object_key: str, bases: Sequence[int], bytes_min: int
) -> list[Chunk]:
    """Return chunks that refer to an object, which holds these next to one another.

    `bases`: where the log's segments begin, ascending. `bytes_min`: the fewest bytes that a
    reference stands for, except the last one of a segment. A reference lies within one segment,
    because the cleaner removes the chunks of one segment and none of its neighbours.
    """
    references: list[Chunk] = []
    first = position = size_bytes = 0
    segments = [bisect_right(bases, chunk.base_offset) for chunk in chunks]
    for at, chunk in enumerate(chunks):
        size_bytes += len(chunk.data)
        if size_bytes >= bytes_min or segments[at] not in segments[at + 1 : at + 2]:
            data = Reference(object_key, position, size_bytes).encode()
            begin_offset = chunks[first].base_offset
            references.append(Chunk(chunk.key, begin_offset, chunk.end_offset, data))
            first, position, size_bytes = at + 1, position + size_bytes, 0
    return references


class Sweep:
    """Deletes objects that no reference names. One node of a cluster does it."""

    def __init__(
        self,
        store: CommitStore,
        objects: ObjectStore,
        prefix: str,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """`prefix`: what the keys of this store's objects begin with. `settle` returns when all
        that was read before the call is proven, or raises StorageFailure.
        """
        self._store = store
        self._objects = objects
        self._prefix = prefix
        self._settle = settle
        self._unnamed: set[str] = set()

    async def sweep(self) -> int:
        """Delete the objects that no reference names or will name; return how many.

        At least `SWEEP_INTERVAL_MS` must pass between the end of a sweep and the next one. Raises
        StoreUnavailable, ObjectsUnavailable, StorageFailure.
        """
        swept = 0
        keys, spans, unnamed = set[str](), dict[LogKey, Span](), set[str]()
        async for page in self._objects.list_keys(self._prefix):
            # Page by page: for all keys at once it takes half a second.
            keys.update(each.key for each in page)
            for each in page:
                _widen(spans, each.key)
            if len(keys) >= SWEPT_KEYS:
                swept += await self._sweep(keys, spans.values(), unnamed)
                keys, spans = set(), {}
        swept += await self._sweep(keys, spans.values(), unnamed)
        self._unnamed = unnamed
        return swept

    async def _sweep(self, keys: set[str], spans: Collection[Span], unnamed: set[str]) -> int:
        """Delete those of some objects that no reference names; return how many. `spans`: which
        chunks the objects hold. `unnamed` gets those that the next sweep deletes.
        """
        if not keys:
            return 0
        # The references are read after the objects were listed. So they name all that an earlier
        # incarnation has committed, and an object that was written in between is not in `keys`.
        current = {None, *await self._store.incarnations()}
        async for references in self._store.references(spans):
            try:
                keys.difference_update(decode(data).object_key for data in references)
            except ValueError as newer:
                raise StoreUnavailable(str(newer)) from newer
        replaced = {key for key in keys if _writer(key) not in current}
        await self._settle()
        gone = sorted(replaced | (keys & self._unnamed))
        await self._objects.delete(gone)
        unnamed.update(islice(keys.difference(gone), SWEPT_KEYS - len(unnamed)))
        return len(gone)


def _widen(spans: dict[LogKey, Span], object_key: str) -> None:
    """Let the span of a log include the chunks that an object holds."""
    held = span_of(object_key)
    if held is not None:
        span = spans.get(held.key, held)
        base_offset = min(span.base_offset, held.base_offset)
        spans[held.key] = Span(held.key, base_offset, max(span.end_offset, held.end_offset))


def span_of(object_key: str) -> Span | None:
    """Return which chunks an object may hold; None: its key names no log."""
    found = _OF_LOG.match(object_key)
    if found is None:
        return None
    topic_id, partition, base_offset, end_offset = found.groups()
    key = LogKey(UUID(topic_id), int(partition))
    return Span(key) if base_offset is None else Span(key, int(base_offset), int(end_offset))


def _writer(object_key: str) -> int | None:
    """Return the incarnation that wrote an object; None: its key names no incarnation."""
    found = _WRITER.search(object_key)
    return None if found is None else int(found[1])


class Pace(NamedTuple):
    """When a node moves batches to objects, and sweeps."""

    interval_s: float = 1.0
    retry_s: tuple[float, float] = (5.0, 60.0)
    """The wait after a failure, at first and at most."""
    first_sweep_ms: int = 60_000
    """Counted from the node's start, and short: nodes that live only for minutes sweep too."""
    sweep_interval_ms: int = SWEEP_INTERVAL_MS


class Bulk(NamedTuple):
    """The work of a node for its cluster's bucket, in the background, and when it is due."""

    objects: ObjectStore
    prefix: str
    """What the keys of this database's objects begin with."""
    offload: Offload
    sweep: Sweep
    pace: Pace = Pace()
