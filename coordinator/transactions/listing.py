"""Which transactional ids a ListTransactions asks for: its filters, pure.

An id has to pass all filters; one that is empty or negative lets everything pass. The pattern is
not here: matching takes time.

Source: KIP-664, KIP-994; corner cases as Apache Kafka 4.3 decides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from coordinator.transactions.metadata import State, TransactionMetadata

#: Each name with the states it asks for: a child that has voted is told as Ongoing, and so is found
#: by that name, and by its own.
_STATES = {
    named.label: frozenset(state for state in State if named in (state, state.told_as))
    for named in State
}


def parse_states(names: Iterable[str]) -> tuple[frozenset[State], list[str]]:
    """Return the states of these names, and the names that are none, each once, in their order.

    Names are Kafka's (`Ongoing`), upper and lower case as there, and `Voted`, which is ours.
    """
    distinct = list(dict.fromkeys(names))
    known = frozenset[State]().union(*(_STATES[name] for name in distinct if name in _STATES))
    return known, [name for name in distinct if name not in _STATES]


@dataclass(frozen=True, slots=True)
class Filters:
    """What is asked for. The default lets everything through."""

    states: Set[State] | None = None
    """None: any. Empty: only unknown states were asked for, so nothing is in them."""
    producer_ids: Set[int] = frozenset()
    longer_than_ms: int = -1
    """Since the begin of the last transaction, ended or not, as in Kafka. An id that never had one
    began at -1: the longest ago of all."""

    def admit(self, txn: TransactionMetadata, now_ms: int) -> bool:
        """Whether `txn` is asked for, at that time. DEAD is on its way out: never."""
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
        """Yield those of `transactions` that are asked for."""
        return (txn for txn in transactions if self.admit(txn, now_ms))
