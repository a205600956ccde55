"""How much of a node's rows should be in objects by now, and waits in the database.

A log's newest batches wait until an object is full (`logstore.remote.offload`): they are no
backlog. What the cleaner has brought back from objects does not count either: it takes no more room
than before it had moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.remote.offload import OBJECT_BYTES
from logstore.remote.remote_ledger import RemoteLedger

#: Bytes of each log that are no backlog: an object that is not full yet, and as much again, since a
#: ledger counts the segment in which its rows begin as a whole.
WAITING_BYTES = 2 * OBJECT_BYTES
#: How old a count may be: each one looks at all logs, and every batch of a client asks for it.
_COUNT_MS = 1_000


class Backlog:
    """The backlog of all logs that a node leads. May be asked in any thread."""

    def __init__(
        self, ledgers: Callable[[], Iterable[RemoteLedger]], steady_ms: Callable[[], int]
    ) -> None:
        """`ledgers` returns those whose batches move to objects."""
        self._ledgers = ledgers
        self._steady_ms = steady_ms
        self._counted_ms: int | None = None
        self._bytes = 0

    def bytes(self) -> int:
        """Return the backlog's size, which may be a second old."""
        now_ms = self._steady_ms()
        if self._counted_ms is None or now_ms - self._counted_ms >= _COUNT_MS:
            self._counted_ms = now_ms
            self._bytes = sum(overdue_bytes(ledger) for ledger in self._ledgers())
        return self._bytes


def overdue_bytes(ledger: RemoteLedger) -> int:
    """Return the bytes of a log that would be in objects by now if these took them at once."""
    if ledger.segments.size_bytes <= WAITING_BYTES:
        return 0  # Whatever has moved: that takes three times as long to find out.
    return max(ledger.bytes_never_moved - WAITING_BYTES, 0)
