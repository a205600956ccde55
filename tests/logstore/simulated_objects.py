"""The twin of an object store: in memory, and as unreliable as it is told to be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from logstore.disk.files import Buffer
from logstore.remote.object_store import NoSuchObject, ObjectsUnavailable, StoredObject


async def _at_once() -> None:
    """The time that a request takes, before a simulation sets another."""


class SimulatedObjects:
    """An `ObjectStore`. The simulation that owns it draws its faults."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        #: Awaited before a request has its effect, and once more before its answer.
        self.on_way: Callable[[], Awaitable[None]] = _at_once
        #: Whether a request is lost before its effect; whether its answer is lost after it.
        self.loses_request: Callable[[], bool] = bool
        self.loses_answer: Callable[[], bool] = bool

    async def _asked(self, doing: str) -> None:
        await self.on_way()
        if self.loses_request():
            raise ObjectsUnavailable(doing, "503 before the effect")

    async def _answered(self, doing: str) -> None:
        await self.on_way()
        if self.loses_answer():
            raise ObjectsUnavailable(doing, "no answer after the effect")

    async def put(self, key: str, data: Buffer) -> None:
        # A copy as of the call: the caller may use its buffer again once it has an answer.
        copy = bytes(data)
        await self._asked(f"write {key}")
        assert self.objects.get(key, copy) == copy, "an object never changes"
        self.objects[key] = copy
        await self._answered(f"write {key}")

    async def read(self, key: str, position: int, size: int) -> bytes:
        await self._asked(f"read {key}")
        if not size:
            raise ObjectsUnavailable(f"read {key}", "a server refuses an empty range")
        data = self.objects.get(key, b"")[position : position + size]
        await self._answered(f"read {key}")
        if len(data) < size:
            raise NoSuchObject(f"{key} has no {size} bytes at {position}")
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        await self._asked("delete objects")
        for key in keys:
            self.objects.pop(key, None)
        await self._answered("delete objects")

    async def list_keys(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        await self._asked(f"list {prefix}")
        parts = f"{prefix.rstrip('/')}/"
        found = [key for key in self.objects if key.startswith(parts)]
        await self._answered(f"list {prefix}")
        for key in found:
            if key in self.objects:
                yield [StoredObject(key, len(self.objects[key]))]
