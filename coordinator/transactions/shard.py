"""One shard: the transactional ids that one partition of `__transaction_state` coordinates.

Changes only by `apply`, which is fed the records in log order: live right after the append, at the
start from the log. So the live state is the replayed state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from coordinator.transactions.index import TransactionIndex
from coordinator.transactions.metadata import TransactionMetadata
from coordinator.transactions.states import State
from coordinator.transactions.work import MarkerWork, work_due

_NO_CHILDREN: Mapping[str, TransactionMetadata] = MappingProxyType({})


class Shard:
    """The transactions of one partition of `__transaction_state`."""

    __slots__ = ("_children", "_index", "_transactions", "partition")

    def __init__(self, partition: int, index: TransactionIndex | None = None) -> None:
        """`index` spans all shards, and is told of every change here."""
        self.partition = partition
        self._index = TransactionIndex() if index is None else index
        self._transactions: dict[str, TransactionMetadata] = {}
        #: By parent, then by transactional id: the children that are open or have voted. The others
        #: cost no more than any id.
        self._children: dict[str, dict[str, TransactionMetadata]] = {}

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self._transactions.values())

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """Return what is known of `transactional_id`, None if nothing."""
        return self._transactions.get(transactional_id)

    def children(self, transactional_id: str) -> Mapping[str, TransactionMetadata]:
        """Return its children that are ONGOING or VOTED, by transactional id."""
        return self._children.get(transactional_id, _NO_CHILDREN)

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

    def work_due(self) -> list[MarkerWork]:
        """Return all that is owed: the question that ends a replay."""
        return [work for txn in self if (work := work_due(txn, self.get)) is not None]

    def _on_child(self, txn: TransactionMetadata, parent_id: str) -> None:
        if txn.state in (State.ONGOING, State.VOTED):
            self._children.setdefault(parent_id, {})[txn.transactional_id] = txn
        else:
            self._leave(txn.transactional_id, parent_id)

    def _leave(self, transactional_id: str, parent_id: str) -> None:
        family = self._children.get(parent_id)
        if family is not None:
            family.pop(transactional_id, None)
            if not family:
                del self._children[parent_id]
