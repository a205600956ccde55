"""Whether a bucket has the objects that the rows of its database name, and whether they are whole.

`compare` goes by their sizes: it reads all references and lists all objects, with a request for
each thousand objects, and reads no object. `damaged` reads all of them, one after the other. Both
keep the keys of all objects that are named in memory, some 250 bytes each.

Nodes may serve meanwhile. They replace references, and write and delete objects. So what seems to
be missing is looked for twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, Protocol, TypeAlias

from logstore.remote.commit_store import LogKey, Span, StoreUnavailable
from logstore.remote.object_store import NoSuchObject, ObjectStore
from logstore.remote.offload import span_of
from logstore.remote.references import decode
from wire.errors import WireError
from wire.records.header import is_intact, iterate_batches

#: (name of the step, how much there is to do) -> a context, which yields the function to call with
#: how much was done since the last call.
Progress: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def untold(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Tell nothing of a step's progress."""
    yield lambda done: None


class References(Protocol):
    """The part of a `CommitStore` that this module needs."""

    def references(self, spans: Collection[Span]) -> AsyncIterator[Sequence[bytes]]:
        """As `CommitStore.references`."""
        ...


class Comparison(NamedTuple):
    """What was found."""

    named: int
    """How many objects the rows name."""
    unnamed: int
    """How many objects no row names. Sweeps delete them in time."""
    unnamed_bytes: int
    missing: Sequence[str]
    """The keys of those that are named, and not there or too short; ascending."""


async def compare(
    store: References,
    objects: ObjectStore,
    prefix: str,
    logs: Collection[LogKey],
    progress: Progress = untold,
) -> Comparison:
    """Compare the references of these logs with the objects below a prefix.

    `logs`: all logs of which anything has moved. Raises StoreUnavailable, ObjectsUnavailable.
    """
    sizes = await _named_sizes(store, [Span(log) for log in logs])
    named = len(sizes)
    unnamed = unnamed_bytes = 0
    with progress("Listing objects", named) as on_progress:
        async for page in objects.list_keys(prefix):
            for each in page:
                size_bytes = sizes.get(each.key)
                if size_bytes is None:
                    unnamed += 1
                    unnamed_bytes += each.size_bytes
                elif each.size_bytes >= size_bytes:
                    del sizes[each.key]
            on_progress(len(page))
    if sizes:
        of_logs = {span.key for key in sizes if (span := span_of(key)) is not None}
        still = await _named_sizes(store, [Span(log) for log in of_logs])
        sizes = {key: size for key, size in sizes.items() if key in still}
    return Comparison(named, unnamed, unnamed_bytes, sorted(sizes))


class Damaged(NamedTuple):
    """An object that has a batch with other bytes than were written."""

    key: str
    position: int
    """Where the first such batch begins."""


async def damaged(
    store: References, objects: ObjectStore, logs: Collection[LogKey], progress: Progress
) -> list[Damaged]:
    """Read the objects that the references of these logs name; return those with damaged batches.

    Leaves out objects that are not there. Raises StoreUnavailable, ObjectsUnavailable.
    """
    sizes = await _named_sizes(store, [Span(log) for log in logs])
    found: list[Damaged] = []
    with progress("Reading objects", len(sizes)) as on_progress:
        for key, size_bytes in sorted(sizes.items()):
            # One at a time: the nodes use the bucket and its network too.
            with suppress(NoSuchObject):
                position = whole_bytes(await objects.read(key, 0, size_bytes))
                if position < size_bytes:
                    found.append(Damaged(key, position))
            on_progress(1)
    return found


def whole_bytes(data: bytes) -> int:
    """Return how many bytes, from the first on, are batches whose CRC is right."""
    position = 0
    with suppress(WireError):
        for header, batch in iterate_batches(data):
            if not is_intact(header, batch):
                break
            position += header.size_bytes
    return position


async def _named_sizes(store: References, spans: Collection[Span]) -> dict[str, int]:
    """Return the keys that the references in these spans name, with the bytes that each needs."""
    sizes: dict[str, int] = {}
    async for some in store.references(spans):
        for data in some:
            try:
                key, position, size_bytes = decode(data)
            except ValueError as newer:
                raise StoreUnavailable(str(newer)) from newer
            sizes[key] = max(sizes.get(key, 0), position + size_bytes)
    return sizes
