"""The numbers of the database that the bucket of a cluster keeps: they tell of a dump put back.

A database that was restored from a dump names fewer objects than the database that it replaces, and
sweeps would delete the others. A newer dump would then be worth nothing. Nodes remember how far the
database had come (`known_history`), but their directories may be gone: those of containers are. So
the controller writes the numbers that it is sure of to the bucket before each sweep, and compares
the database with those that are there. Each node also compares once after its start. A database
that is behind halts the cluster, as every loss does: an administrator decides.

An object never changes, so each writing is an object of its own, and takes the place of those that
were there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from logstore.remote.object_store import NoSuchObject, ObjectStore, StoredObject
from magnetar.runtime.known_history import KnownHistory, decoded, encoded, refuse_forgotten
from magnetar.storage.history import History

PREFIX = "histories"


class KeptHistory:
    """What the bucket of one cluster keeps of its database's numbers."""

    def __init__(
        self,
        objects: ObjectStore,
        objects_prefix: str,
        incarnation: int,
        known: KnownHistory,
        read: Callable[[], Awaitable[History]],
    ) -> None:
        """`objects_prefix`: what the keys of this database's batches begin with. `known`: what this
        node is sure of. `read` reads the database's numbers.
        """
        self._objects = objects
        self._prefix = f"{PREFIX}/{objects_prefix}"
        self._incarnation = incarnation
        self._known = known
        self._read = read
        self._count = count()

    async def compare(self) -> Sequence[StoredObject]:
        """Return the objects that keep the numbers. Raises CommitsLost where the database is behind
        them; ObjectsUnavailable, CatalogUnavailable.
        """
        pages = [page async for page in self._objects.list_keys(self._prefix)]
        kept = [each for page in pages for each in page]
        told = [await self._told(each) for each in kept]
        # Read after the bucket: another node may have just written newer numbers.
        now = await self._read()
        for history in told:
            if history is not None:
                refuse_forgotten(history, now)
        return kept

    async def renew(self) -> None:
        """Compare, and let the bucket keep what is known by now. Raises as `compare`."""
        before = await self.compare()
        if self._known.sure is not None:
            key = f"{self._prefix}/{self._incarnation}-{next(self._count)}"
            await self._objects.put(key, encoded(self._known.sure))
            await self._objects.delete([each.key for each in before])

    async def _told(self, kept: StoredObject) -> History | None:
        try:
            return decoded(await self._objects.read(kept.key, 0, kept.size_bytes))
        except NoSuchObject:
            # Another node has replaced it meanwhile.
            return None
