"""The seam to an object store: whole objects under unique keys, and ranges of them.

An object is written once and never changed. Its key is made of what no other writer has (a node, an
incarnation, a count), so a write that is sent again writes the same bytes, and no write has to be
conditional. Order and fencing are the database's: a key that no row names was never committed. So
any store of the S3 protocol serves, and so do those of Google and Azure.

What may go wrong, and what a caller does:

- `ObjectsUnavailable`: the outcome of a write is unknown. Write the same again, or give the key up:
  a sweep finds an object that nothing names, by `list_keys`, and deletes it.
- `NoSuchObject`: a row names an object that is not there, or damaged. Either it was deleted after
  the row was replaced (read the rows again), or acknowledged data is lost.

Implementations: `Bucket`, and a twin of the simulation; one contract test serves both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from logstore.disk.files import Buffer
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class ObjectsUnavailable(KafkaError):
    """The object store does not answer, or refuses. Whether a write had its effect is not known."""

    def __init__(self, doing: str, reason: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {doing}: {reason}")


class NoSuchObject(Exception):
    """There is no object of that key, or it ends before the range, or it holds something else."""


class StoredObject(NamedTuple):
    """One object, as a listing tells of it."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """A bucket, or the part of one below a prefix. Keys have `/` between their parts."""

    async def put(self, key: str, data: Buffer) -> None:
        """Write a whole object. Durable on return. Writing the same again does no harm.

        Raises ObjectsUnavailable: the object may be there, now or later.
        """

    async def read(self, key: str, position: int, size: int) -> bytes:
        """Return `size` bytes (at least one) of an object, from `position` on.

        Raises NoSuchObject, ObjectsUnavailable.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, also those that are gone already.

        Raises ObjectsUnavailable: any of them may be gone.
        """

    def list_keys(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """Yield all objects whose keys begin with the parts of `prefix`, some at a time.

        In no order that a caller may count on. Raises ObjectsUnavailable.
        """
