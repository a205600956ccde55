"""The transactional ids that one partition of `__transaction_state` coordinates, and the index over
all of them.

A shard changes only by `apply`, which is fed the records in log order: live right after the append,
at the start from the log. So the live state is the replayed state. The shards tell the index of
every change, so the index is a fold of the logs too. It holds at most three producer ids for each
transactional id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import chain
from operator import attrgetter
from types import MappingProxyType

from coordinator.transactions.commit_plan import MarkerWork, work_due
from coordinator.transactions.metadata import State, TransactionMetadata
from wire.records.header import NO_PRODUCER_ID

#: The states whose transactions the index holds.
_INDEXED = frozenset({State.ONGOING, State.VOTED})
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

    def in_states(self, states: Set[State]) -> list[TransactionMetadata] | None:
        """Return the transactions in these states, None where the index does not hold them all."""
        if not states <= _INDEXED:
            return None
        found = [*self._open.values()] if State.ONGOING in states else []
        return [*found, *self._votes.values()] if State.VOTED in states else found

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
        """Return the transactional id of a producer id, current or before its last rotation; None:
        unknown."""
        return self._transactional_ids.get(producer_id)

    def on_change(self, old: TransactionMetadata | None, new: TransactionMetadata | None) -> None:
        """Account for `new` in the place of `old`; None where there is no value."""
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

    def add(self, other: TransactionIndex) -> None:
        """Take in the transactions of another index, which has none of these.

        Not one by one: a shard may have tens of thousands, and joins in one step.
        """
        self._transactional_ids.update(other._transactional_ids)
        self._open.update(other._open)
        self._votes.update(other._votes)

    def remove(self, transactions: Mapping[str, TransactionMetadata]) -> None:
        """Take out transactions, given by their ids: all of a shard, in one step."""
        for found in (self._open, self._votes):
            for transactional_id in found.keys() & transactions.keys():
                del found[transactional_id]
        forget = self._transactional_ids.pop
        for producer_id in chain.from_iterable(map(_PRODUCER_IDS, transactions.values())):
            forget(producer_id, None)


def _producer_ids(txn: TransactionMetadata | None) -> Set[int]:
    if txn is None:
        return frozenset()
    return {*_PRODUCER_IDS(txn)} - {NO_PRODUCER_ID}


_NO_CHILDREN: Mapping[str, TransactionMetadata] = MappingProxyType({})


class Shard:
    """The transactions of one partition of `__transaction_state`."""

    __slots__ = ("_index", "_transactions", "families", "get", "partition")

    def __init__(self, partition: int, index: TransactionIndex | None = None) -> None:
        """`index` spans all shards, and is told of every change here."""
        self.partition = partition
        self._index = TransactionIndex() if index is None else index
        self._transactions: dict[str, TransactionMetadata] = {}
        #: Returns what is known of a transactional id, None if nothing. The dictionary's own
        #: method, since every transactional request and batch asks.
        self.get = self._transactions.get
        #: By parent, then by transactional id: the children that are open or have voted, the one
        #: that changed last at the end. The others cost no more than any id.
        self.families: dict[str, dict[str, TransactionMetadata]] = {}

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self._transactions.values())

    def __len__(self) -> int:
        return len(self._transactions)

    def children(self, transactional_id: str) -> Mapping[str, TransactionMetadata]:
        """Return the children of a parent that are ONGOING or VOTED, by transactional id."""
        return self.families.get(transactional_id, _NO_CHILDREN)

    def newest_child(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the child among `children` that changed last, None where there is none."""
        family = self.families.get(transactional_id)
        return None if family is None else next(reversed(family.values()))

    def apply(self, txn: TransactionMetadata, _offset: int = -1) -> None:
        """Make the whole new value that a record carries the current one; DEAD removes it.

        Where in the log the record stands does not matter: the last one of an id counts.
        """
        if txn.state is State.DEAD:
            self.remove(txn.transactional_id)
        else:
            self._index.on_change(self._transactions.get(txn.transactional_id), txn)
            self._transactions[txn.transactional_id] = txn
            if txn.parent_id is not None:
                self._on_child(txn, txn.parent_id)

    def remove(self, transactional_id: str) -> None:
        """Apply a tombstone."""
        removed = self._transactions.pop(transactional_id, None)
        self._index.on_change(removed, None)
        if removed is not None and removed.parent_id is not None:
            self._leave(transactional_id, removed.parent_id)

    def apply_pending(
        self, txn: TransactionMetadata, offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Refuse: `__transaction_state` holds no transactional batch."""
        raise AssertionError(f"{txn.transactional_id}: offset {offset} is in a transaction")

    def apply_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Change nothing: no transaction writes to `__transaction_state`, so no marker ends one."""

    def join(self, index: TransactionIndex) -> None:
        """Add the transactions of this shard, which was replayed by itself, to `index`."""
        index.add(self._index)
        self._index = index

    def leave(self) -> None:
        """Take the transactions of this shard out of the index."""
        self._index.remove(self._transactions)
        self._index = TransactionIndex()

    def work_due(self) -> list[MarkerWork]:
        """Return all that is owed: the question that ends a replay."""
        return [work for txn in self if (work := work_due(txn, self.get)) is not None]

    def _on_child(self, txn: TransactionMetadata, parent_id: str) -> None:
        if txn.state in (State.ONGOING, State.VOTED):
            family = self.families.setdefault(parent_id, {})
            family.pop(txn.transactional_id, None)
            family[txn.transactional_id] = txn
        else:
            self._leave(txn.transactional_id, parent_id)

    def _leave(self, transactional_id: str, parent_id: str) -> None:
        family = self.families.get(parent_id)
        if family is not None:
            family.pop(transactional_id, None)
            if not family:
                del self.families[parent_id]
