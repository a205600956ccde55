"""How much waits in a node's rows that should be in objects: what an object store that is away, or
slow, costs the database.

A log's newest batches wait for company (`logstore.remote.offload`): that is no backlog. What the
cleaner has brought back from objects does not count either: it is no more than was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.remote.offload import OBJECT_BYTES
from logstore.remote.remote_ledger import RemoteLedger

#: Bytes of each log that are no backlog: an object that comes together, and the part of a segment
#: that is counted too much.
WAITING_BYTES = 2 * OBJECT_BYTES
#: How old a count may be. It looks at each log, and clients' batches ask for it.
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
        """Return how much it is, as it was within the last second."""
        now_ms = self._steady_ms()
        if self._counted_ms is None or now_ms - self._counted_ms >= _COUNT_MS:
            self._counted_ms = now_ms
            self._bytes = sum(overdue_bytes(ledger) for ledger in self._ledgers())
        return self._bytes


def overdue_bytes(ledger: RemoteLedger) -> int:
    """Return what of a log would be in objects by now if they had taken it at once."""
    return max(ledger.bytes_never_moved - WAITING_BYTES, 0)
