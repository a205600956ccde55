"""Small files beside a log in the store. Memory holds all of them; the next commit writes changes.

Commits keep their order, and each has its effect as a whole or not at all. So no file is torn, and
no crash leaves a change without an earlier change or append: no syncs are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from logstore.disk.barriers import Procedure
from logstore.disk.files import Buffer
from logstore.disk.pieces import Piece, gathering
from logstore.remote.commit_store import AttachmentChange, LogKey
from logstore.sync.committed_ledger import Waiter

#: Does a procedure while its result is wanted, then calls back: as `GroupCommit.carry_out`.
CarryOut: TypeAlias = Callable[[Procedure[None], Callable[[], bool], Waiter], None]


class RemoteAttachments:
    """`Attachments` of a `RemoteLedger`."""

    def __init__(
        self,
        key: LogKey,
        stored: Mapping[str, bytes],
        touch: Callable[[], None],
        carry_out: CarryOut,
    ) -> None:
        """`touch` is called with every change: the next commit has to cover it."""
        self._key = key
        self._touch = touch
        self.carry_out = carry_out
        self._data = {name: bytearray(data) for name, data in stored.items()}
        self._changes: dict[str, AttachmentChange] = {}
        self._is_closed = False

    def write(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        self._data[name] = bytearray(data)
        self._change(AttachmentChange(self._key, name, bytes(data)))

    def replacing(
        self, name: str, pieces: Iterable[Piece], *, sync: bool = True
    ) -> Procedure[None]:
        data = yield from gathering(pieces)
        self.write(name, data)

    def append(self, name: str, data: Buffer) -> None:
        known = self._data.setdefault(name, bytearray())
        known += data
        earlier = self._changes.get(name)
        if earlier is None:
            self._change(AttachmentChange(self._key, name, bytes(data), is_append=True))
        elif earlier.data is None:
            self._change(AttachmentChange(self._key, name, bytes(known)))
        else:
            self._change(earlier._replace(data=earlier.data + data))

    def read(self, name: str) -> bytes | None:
        data = self._data.get(name)
        return None if data is None else bytes(data)

    def names(self) -> list[str]:
        return sorted(self._data)

    def delete(self, name: str) -> None:
        if self._data.pop(name, None) is not None:
            self._change(AttachmentChange(self._key, name, None))

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            self.delete(name)

    def _change(self, change: AttachmentChange) -> None:
        if not self._is_closed:
            self._changes[change.name] = change
            self._touch()

    def close(self) -> None:
        """Write nothing more: the log may have another owner."""
        self._is_closed = True
        self._changes = {}
        self._touch = _ignore  # The one before leads back to the ledger: a cycle.

    def take_changes(self) -> list[AttachmentChange]:
        """Hand over what the next commit has to write."""
        if not self._changes:
            return []
        changes, self._changes = list(self._changes.values()), {}
        return changes


def _ignore() -> None:
    """Touch nothing: the log is closed."""
