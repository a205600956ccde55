"""Objects that are gone for good: what they held is given up, and their partitions go on.

A row that names such an object gets batches without records in place of the name
(`logstore.remote.references`). So the partition can be opened, no offset is given out twice, and
consumers go on behind what is lost. States of producers come from the snapshots and the batches
that are left. A transaction that is open in them ends as its coordinator knows, or is aborted.

Nodes may serve meanwhile. A row is changed only if it still names the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from logstore.partition.snapshot import SUFFIX
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshots import snapshot_offsets
from logstore.remote.bucket import Bucket, UnusableUrl
from logstore.remote.commit_store import LogKey, StoreUnavailable
from logstore.remote.object_check import (
    Comparison,
    Damaged,
    Progress,
    compare,
    damaged,
    untold,
)
from logstore.remote.object_store import NoSuchObject, ObjectStore, ObjectsUnavailable
from logstore.remote.offload import span_of
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.references import REFERENCE, REFERENCE_BYTES_MAX, decode, without_object
from magnetar.storage.catalog import Catalog
from magnetar.storage.cluster_objects import moved_logs, objects_prefix
from magnetar.storage.database import CatalogFailure, Database, Queries

_T = TypeVar("_T")
#: The threads of obstore use Python for a moment after the call that they have answered, and no
#: call ends them. A process that ends too early is aborted: of 25 that ended at once, 7 after
#: writes, 10 after reads, 17 after a listing. With this wait none was.
_THREADS_S = 0.1
#: How many objects are asked for at the same time.
_AT_ONCE = 16
#: How many rows one transaction changes, by three round trips each at the most. Nodes wait two
#: seconds for a change of the catalog, and cannot make one meanwhile.
_TOGETHER = 100

#: References alone have few bytes and begin with this one. Those of batches are not read.
_REFERENCES = """
SELECT base_offset, end_offset, data FROM chunks
WHERE topic_id = ? AND partition = ? AND base_offset >= ? AND base_offset < ?
AND CASE WHEN octet_length(data) <= ? THEN get_byte(data, 0) = ? END
ORDER BY base_offset"""
_ATTACHED = "SELECT name FROM attachments WHERE topic_id = ? AND partition = ?"
_GIVE_UP = """
UPDATE chunks SET data = ?
WHERE topic_id = ? AND partition = ? AND base_offset = ? AND data = ?"""
#: The segment that begins last before an offset, if it reaches there. Further ones are not read.
_SHRINK = """
UPDATE segments SET size_bytes = size_bytes - ?
WHERE topic_id = ? AND partition = ? AND end_offset > ? AND base_offset = (
    SELECT max(base_offset) FROM segments
    WHERE topic_id = ? AND partition = ? AND base_offset <= ?
)"""


class Lost(NamedTuple):
    """A row of the database that names an object that is gone."""

    log: LogKey
    base_offset: int
    end_offset: int
    reference: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of its batches."""
        return decode(self.reference).size_bytes


class LostRange(NamedTuple):
    """Offsets of a partition, whose records are gone."""

    partition: str
    first_offset: int
    last_offset: int
    size_bytes: int


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of some work with a bucket, once the process may end."""

    async def finished() -> _T:
        try:
            return await work
        finally:
            await asyncio.sleep(_THREADS_S)

    return asyncio.run(finished())


async def compared(
    catalog: Catalog, url: str, objects: ObjectStore, progress: Progress = untold
) -> Comparison:
    """Compare the rows of a database with the objects of its bucket.

    Raises StoreUnavailable, ObjectsUnavailable.
    """
    store = PostgresStore(url)
    try:
        where = (objects_prefix(catalog), moved_logs(catalog))
        return await compare(store, objects, *where, progress)
    finally:
        await store.close()


async def read_through(
    catalog: Catalog, url: str, objects: ObjectStore, progress: Progress
) -> list[Damaged]:
    """Read all objects of a database's bucket; return those that have damaged batches.

    Raises StoreUnavailable, ObjectsUnavailable.
    """
    store = PostgresStore(url)
    try:
        return await damaged(store, objects, moved_logs(catalog), progress)
    finally:
        await store.close()


def find_lost(
    catalog: Catalog, url: str, bucket_url: str, progress: Progress
) -> tuple[Comparison, list[Lost]]:
    """Return what a comparison tells, and the rows whose batches are gone.

    Raises CatalogUnavailable; CatalogFailure, also if the bucket does not answer.
    """

    async def found(objects: Bucket) -> tuple[Comparison, list[Lost]]:
        comparison = await compared(catalog, url, objects, progress)
        lost = read_lost(catalog.database, comparison.missing)
        return comparison, await confirmed(objects, lost, progress)

    try:
        return run_to_end(found(Bucket(bucket_url)))
    except StoreUnavailable as away:
        raise CatalogFailure(f"the database cannot be compared with the bucket: {away}") from away
    except (UnusableUrl, ObjectsUnavailable) as away:
        reason = away.detail if isinstance(away, ObjectsUnavailable) else str(away)
        raise CatalogFailure(f"the bucket {bucket_url} cannot be looked at: {reason}") from away


def ranges(catalog: Catalog, lost: Sequence[Lost]) -> list[LostRange]:
    """Return the rows as ranges of offsets next to one another, in the order of `lost`."""
    found: list[tuple[LogKey, int, int, int]] = []
    for each in lost:
        log, base_offset, end_offset, size_bytes = (*each[:3], each.size_bytes)
        if found and found[-1][0] == log and found[-1][2] == base_offset:
            _, base_offset, _, before_bytes = found.pop()
            size_bytes += before_bytes
        found.append((log, base_offset, end_offset, size_bytes))
    ids = {log.topic_id for log, *_ in found}
    names = {row.id: row.name for row in catalog.topics([*ids])}
    return [
        LostRange(
            f"{names.get(log.topic_id, log.topic_id)}-{log.partition}",
            base_offset,
            end_offset - 1,
            size_bytes,
        )
        for log, base_offset, end_offset, size_bytes in found
    ]


def read_lost(database: Database, missing: Iterable[str]) -> list[Lost]:
    """Return the rows that name these objects, by partition and offset.

    Raises CatalogFailure, CatalogUnavailable.
    """
    with database.statements("look at the bucket's use") as queries:
        return sorted(lost for key in missing for lost in _naming(queries, key))


def _naming(queries: Queries, object_key: str) -> Iterator[Lost]:
    span = span_of(object_key)
    if span is not None:
        values = (*span.key, span.base_offset, span.end_offset, REFERENCE_BYTES_MAX, REFERENCE)
        for base_offset, end_offset, data in queries.execute(_REFERENCES, values).fetchall():
            if decode(bytes(data)).object_key == object_key:
                yield Lost(span.key, base_offset, end_offset, bytes(data))


async def confirmed(objects: ObjectStore, lost: Sequence[Lost], progress: Progress) -> list[Lost]:
    """Return those of the rows whose batches cannot be read.

    The other rows name the part of a short object that is there, or an object that the listing did
    not show yet. Raises ObjectsUnavailable.
    """
    gone: list[Lost] = []
    with progress("Asking for what is missing", len(lost)) as on_progress:
        for first in range(0, len(lost), _AT_ONCE):
            some = lost[first : first + _AT_ONCE]
            are_gone = await asyncio.gather(*(_is_gone(objects, each) for each in some))
            gone += [each for each, is_gone in zip(some, are_gone, strict=True) if is_gone]
            on_progress(len(some))
    return gone


async def _is_gone(objects: ObjectStore, lost: Lost) -> bool:
    key, position, size_bytes = decode(lost.reference)
    try:
        await objects.read(key, position + size_bytes - 1, 1)
    except NoSuchObject:
        return True
    return False


def give_up(database: Database, lost: Sequence[Lost], progress: Progress) -> int:
    """Let the rows name these objects no more; return how many rows were changed.

    Raises CatalogFailure, CatalogUnavailable: some rows may be changed by then.
    """
    given_up = 0
    with progress("Giving up", len(lost)) as on_progress:
        for first in range(0, len(lost), _TOGETHER):
            some = lost[first : first + _TOGETHER]
            with database.transaction("give lost objects up") as queries:
                cuts = {log: _snapshots_of(queries, log) for log in {each.log for each in some}}
                given_up += sum(_given_up(queries, each, cuts[each.log]) for each in some)
            on_progress(len(some))
    return given_up


def _snapshots_of(queries: Queries, log: LogKey) -> list[int]:
    names = [name for (name,) in queries.execute(_ATTACHED, log).fetchall()]
    return snapshot_offsets(names, SUFFIX) + snapshot_offsets(names, KAFKA_SUFFIX)


def _given_up(queries: Queries, lost: Lost, cuts: Iterable[int]) -> bool:
    log, base_offset, end_offset, reference = lost
    data = without_object(base_offset, end_offset, cuts)
    if queries.execute(_GIVE_UP, (data, *log, base_offset, reference)).rowcount != 1:
        return False
    # The cleaner takes a segment of another size for damaged. A reference lies within one segment.
    place = (*log, base_offset)
    queries.execute(_SHRINK, (lost.size_bytes - len(data), *place, *place))
    return True
