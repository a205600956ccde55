"""Transactions as the cleaner meets them, batch by batch: what is aborted, which markers may go.

Owns the rule of KIP-98: a marker stays as long as any batch of its transaction does, and an entry
of the aborted index stays as long as there is data that it marks as aborted. Both are judged by the
log as this run reads it, not as this run writes it: what this run removes still counts, and only
the next run finds it gone. So no reader is shown data of an aborted transaction as committed,
whichever segments survive a crash.
Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from logstore.segments.aborted_index import AbortedEntry
from wire.records import BatchHeader, ControlType


class CleanedTransactions:
    """The transactions that are open at one point of a log. Batches come in offset order."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        """`aborted` are the log's aborted transactions, in the order of their markers."""
        # In the order of their first offsets: the transaction that begins next comes first.
        self._to_come = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        #: By producer: the aborted transaction that has begun, and whether a batch of it was seen.
        self._aborted: dict[int, tuple[AbortedEntry, bool]] = {}
        #: The producers whose current transaction has data and is not aborted.
        self._committed: set[int] = set()

    def on_batch(self, header: BatchHeader) -> bool:
        """Account for a data batch; return whether it belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        found = self._aborted.get(producer_id)
        # A batch behind the marker belongs to a later transaction, even if the marker is gone.
        if found is None or found[0].last_offset < header.base_offset:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = (found[0], True)
        return True

    def on_marker(
        self, header: BatchHeader, control_type: ControlType
    ) -> tuple[bool, AbortedEntry | None]:
        """Account for a marker; return whether its transaction has data, and its aborted entry.

        The entry is None for a commit, and for an abort that the aborted index does not know.
        """
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if control_type is ControlType.COMMIT:
            has_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return has_data, None
        entry, has_data = self._aborted.pop(producer_id, (None, False))
        # Data whose aborted entry was lost stays as it is, and its marker with it.
        has_data |= producer_id in self._committed
        self._committed.discard(producer_id)
        return has_data, entry

    def _begin_up_to(self, offset: int) -> None:
        to_come = self._to_come
        while to_come and to_come[0].first_offset <= offset:
            entry = to_come.popleft()
            self._aborted[entry.producer_id] = (entry, False)
