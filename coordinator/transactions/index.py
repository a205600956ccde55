"""What is known across all shards: whose producer id it is, and how many transactions are open.

Fed by the shards as they apply records, so it is as much a fold of the logs as they are. Bounded by
them too: at most three producer ids for each transactional id.
"""

from __future__ import annotations

from collections.abc import Set

from coordinator.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata
from coordinator.transactions.states import State


class TransactionIndex:
    """Transactional ids by producer id (current, previous and next), and the open ones counted."""

    __slots__ = ("_transactional_ids", "open_count")

    def __init__(self) -> None:
        self._transactional_ids: dict[int, str] = {}
        #: How many transactions are ONGOING.
        self.open_count = 0

    def __len__(self) -> int:
        return len(self._transactional_ids)

    def transactional_id(self, producer_id: int) -> str | None:
        """Return whose the producer id is or was before its last rotation; None: nobody's."""
        return self._transactional_ids.get(producer_id)

    def on_change(self, old: TransactionMetadata | None, new: TransactionMetadata | None) -> None:
        """Account for a value that took another's place; None: there is none."""
        self.open_count += _is_open(new) - _is_open(old)
        before, after = _producer_ids(old), _producer_ids(new)
        if before == after:
            return
        for producer_id in before - after:
            self._transactional_ids.pop(producer_id, None)
        if new is not None:
            for producer_id in after - before:
                self._transactional_ids[producer_id] = new.transactional_id


def _is_open(txn: TransactionMetadata | None) -> bool:
    return txn is not None and txn.state is State.ONGOING


def _producer_ids(txn: TransactionMetadata | None) -> Set[int]:
    if txn is None:
        return frozenset()
    return {txn.producer_id, txn.previous_producer_id, txn.next_producer_id} - {NO_PRODUCER_ID}
