"""The numbers of the database that the bucket of a cluster keeps: they tell of a dump put back.

A database that was restored from a dump names fewer objects than the database that it replaces, and
sweeps would delete the others. A newer dump would then be worth nothing. Nodes remember how far the
database had come (`known_history`), but their directories may be gone: those of containers are. So
the controller writes the numbers that it is sure of to the bucket before each sweep, and compares
the database with those that are there. Each node also compares once after its start. A database
that is behind halts the cluster, as every loss does: an administrator decides.

An object never changes, so each writing is an object of its own, and takes the place of those that
were there. They lie beside the objects of batches, below `logs/`, since nodes may have no right to
anything else, but not among them: a sweep of the release before would delete them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from logstore.remote.object_store import NoSuchObject, ObjectStore, StoredObject
from magnetar.runtime.known_history import KnownHistory, decoded, encoded, refuse_forgotten
from magnetar.storage.history import History, forgotten


class KeptHistory:
    """What the bucket of one cluster keeps of its database's numbers."""

    def __init__(
        self,
        objects: ObjectStore,
        objects_prefix: str,
        incarnation: int,
        known: KnownHistory,
        read: Callable[[], Awaitable[History]],
        read_proven: Callable[[], Awaitable[History]],
    ) -> None:
        """`objects_prefix`: what the keys of this database's batches begin with. `known`: what this
        node is sure of. `read` reads the database's numbers. `read_proven` reads them by a new
        connection, once a commit of this node has returned that began after the call.
        """
        self._objects = objects
        self._prefix = f"{objects_prefix}-history"
        self._incarnation = incarnation
        self._known = known
        self._read = read
        self._read_proven = read_proven
        self._count = count()

    async def compare(self) -> Sequence[StoredObject]:
        """Return the objects that keep the numbers. Raises CommitsLost where the database is behind
        them; StorageFailure, ObjectsUnavailable, CatalogUnavailable.
        """
        pages = [page async for page in self._objects.list_keys(self._prefix)]
        kept = [each for page in pages for each in page]
        told = [await self._told(each) for each in kept]
        # Read after the bucket: another node may have just written newer numbers.
        now = await self._read()
        if any(history is not None and forgotten(history, now) for history in told):
            # After a fail-over, a node that still reads the old server is behind what the others
            # have kept. No commit of it returns there.
            now = await self._read_proven()
        for history in told:
            if history is not None:
                refuse_forgotten(history, now)
        return kept

    async def renew(self) -> None:
        """Compare, and let the bucket keep what is known by now. Raises as `compare`."""
        kept = await self.compare()
        if self._known.sure is None:
            return
        # After a restore the same key may have been given out before.
        key = f"{self._prefix}/{self._incarnation}-{next(self._count)}"
        before = [each.key for each in kept if each.key != key]
        # Not after the write: they would become more and more in a bucket that deletes nothing.
        await self._objects.delete(before[1:])
        await self._objects.put(key, encoded(self._known.sure))
        await self._objects.delete(before[:1])

    async def _told(self, kept: StoredObject) -> History | None:
        if not kept.size_bytes:
            # A directory, as some tools write it. Servers refuse to read a range of it.
            return None
        try:
            return decoded(await self._objects.read(kept.key, 0, kept.size_bytes))
        except NoSuchObject:
            # Another node has replaced it meanwhile.
            return None
