"""The filters of ListTransactions, pure: which transactional ids the request asks for.

An id has to pass all filters. A filter that is empty or negative lets every id pass. The filter by
a pattern is not here, because to match a pattern takes time.

Source: KIP-664, KIP-994; corner cases as Apache Kafka decides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from coordinator.transactions.metadata import State, TransactionMetadata

#: The states that each name asks for. Clients are told that a child that has voted is Ongoing, so
#: `Ongoing` asks for VOTED too; `Voted` asks for VOTED alone.
_STATES = {
    named.label: frozenset(state for state in State if named in (state, state.told_as))
    for named in State
}


def parse_states(names: Iterable[str]) -> tuple[frozenset[State], list[str]]:
    """Return the states of these names, and the unknown names, each once and in their order.

    The names are Kafka's, such as `Ongoing`, and `Voted`, which is ours. Their case counts.
    """
    distinct = list(dict.fromkeys(names))
    known = frozenset[State]().union(*(_STATES[name] for name in distinct if name in _STATES))
    return known, [name for name in distinct if name not in _STATES]


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of one request. The defaults let every id pass."""

    states: Set[State] | None = None
    """None: any state. Empty: the request named only unknown states, so no id passes."""
    producer_ids: Set[int] = frozenset()
    longer_than_ms: int = -1
    """The least age of the id's last transaction, since its begin. The transaction may have ended,
    as in Kafka. An id that never had a transaction counts as begun at -1, so it always passes."""

    def admit(self, txn: TransactionMetadata, now_ms: int) -> bool:
        """Return whether `txn` passes all filters at `now_ms`. DEAD, being deleted, fails."""
        if txn.state is State.DEAD:
            return False
        if self.states is not None and txn.state not in self.states:
            return False
        if self.producer_ids and txn.producer_id not in self.producer_ids:
            return False
        return self.longer_than_ms < 0 or now_ms - txn.started_at_ms > self.longer_than_ms

    def select(
        self, transactions: Iterable[TransactionMetadata], now_ms: int
    ) -> Iterator[TransactionMetadata]:
        """Yield the transactions that pass all filters."""
        return (txn for txn in transactions if self.admit(txn, now_ms))
