"""What is known across all shards: whose producer id it is, and how many transactions are open.

Fed by the shards as they apply records, so it is as much a fold of the logs as they are. Bounded by
them too: at most three producer ids for each transactional id.
"""

from __future__ import annotations

from collections.abc import Set
from operator import attrgetter

from coordinator.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata
from coordinator.transactions.states import State

_PRODUCER_IDS = attrgetter("producer_id", "previous_producer_id", "next_producer_id")


class TransactionIndex:
    """Transactional ids by producer id (current, previous and next), and the open ones counted."""

    __slots__ = ("_open", "_transactional_ids", "_votes")

    def __init__(self) -> None:
        self._transactional_ids: dict[int, str] = {}
        self._open: dict[str, TransactionMetadata] = {}
        self._votes: dict[str, TransactionMetadata] = {}

    def __len__(self) -> int:
        return len(self._transactional_ids)

    @property
    def open_count(self) -> int:
        """How many transactions are ONGOING."""
        return len(self._open)

    def oldest_open(self) -> TransactionMetadata | None:
        """Return the ONGOING transaction that began first, None where none is open."""
        return min(self._open.values(), key=lambda txn: txn.started_at_ms, default=None)

    @property
    def vote_count(self) -> int:
        """How many transactions are VOTED: their parents' decisions are waited for."""
        return len(self._votes)

    def oldest_vote(self) -> TransactionMetadata | None:
        """Return the vote that has waited longest, None where none waits."""
        return min(self._votes.values(), key=lambda txn: txn.updated_at_ms, default=None)

    def transactional_id(self, producer_id: int) -> str | None:
        """Return whose the producer id is or was before its last rotation; None: nobody's."""
        return self._transactional_ids.get(producer_id)

    def on_change(self, old: TransactionMetadata | None, new: TransactionMetadata | None) -> None:
        """Account for a value that took another's place; None: there is none."""
        if new is not None and new.state is State.ONGOING:
            self._open[new.transactional_id] = new
        elif old is not None:
            self._open.pop(old.transactional_id, None)
        if new is not None and new.state is State.VOTED:
            self._votes[new.transactional_id] = new
        elif old is not None and old.state is State.VOTED:
            self._votes.pop(old.transactional_id, None)
        if old is not None and new is not None and _PRODUCER_IDS(old) == _PRODUCER_IDS(new):
            return
        before, after = _producer_ids(old), _producer_ids(new)
        for producer_id in before - after:
            self._transactional_ids.pop(producer_id, None)
        if new is not None:
            for producer_id in after - before:
                self._transactional_ids[producer_id] = new.transactional_id


def _producer_ids(txn: TransactionMetadata | None) -> Set[int]:
    if txn is None:
        return frozenset()
    return {*_PRODUCER_IDS(txn)} - {NO_PRODUCER_ID}
