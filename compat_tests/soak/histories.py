"""What the writers told about their transactions, folded into one outcome each.

Jepsen's three outcomes: committed (the commit returned), aborted (the abort returned, or no commit
was ever asked for), unknown (asked for, never answered).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Transaction:
    """A transaction of `of` records."""

    of: int
    outcome: Outcome


#: What an event makes of the outcome; a transaction begins as one that was never to be committed.
_AFTER = {
    "committing": Outcome.UNKNOWN,
    "committed": Outcome.COMMITTED,
    "aborted": Outcome.ABORTED,
}


def fold(events: Iterable[Mapping[str, Any]]) -> dict[str, Transaction]:
    """Return the transactions by name. Events of one writer come in its order."""
    transactions: dict[str, Transaction] = {}
    for event in events:
        if event["event"] == "begin":
            transactions[event["txn"]] = Transaction(event["of"], Outcome.ABORTED)
        elif event["event"] in _AFTER:
            transactions[event["txn"]].outcome = _AFTER[event["event"]]
    return transactions


def outcomes(transactions: Mapping[str, Transaction]) -> Counter[str]:
    return Counter(transaction.outcome.value for transaction in transactions.values())
