"""Compare histories with what a read_committed reader found. Every fault names a witness.

A committed transaction is there whole, an aborted one not at all, an unknown one whole or not at
all; each record once. A group has copied each visible record once, and nothing else: its offsets
and its outputs were written together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from compat_tests.soak.entry import Entry, entry_of
from compat_tests.soak.histories import Outcome, Transaction


class Visible(NamedTuple):
    """A record of the entries, where a read_committed reader found it."""

    partition: int
    offset: int
    entry: Entry


class Copy(NamedTuple):
    """A record that a group wrote: where it says its input was, and what that said."""

    partition: int
    offset: int
    value: bytes


def transaction_faults(
    transactions: Mapping[str, Transaction], visible: Iterable[Visible]
) -> list[str]:
    """Say what is lost, torn, doubled, or should not be there."""
    found: defaultdict[str, list[Visible]] = defaultdict(list)
    for each in visible:
        found[each.entry.txn].append(each)
    faults: dict[str, list[str]] = defaultdict(list)
    for name in found.keys() - transactions.keys():
        faults["visible, but never written"].append(f"{name} at {_place(found[name][0])}")
    for name, transaction in transactions.items():
        fault = _fault(transaction, found.get(name, []))
        if fault is not None:
            faults[fault[0]].append(f"{name} ({transaction.outcome.value}): {fault[1]}")
    return _told("transactions", faults)


def _fault(transaction: Transaction, found: list[Visible]) -> tuple[str, str] | None:
    """Return the kind of fault and its witness, None where all is well."""
    times = Counter(each.entry.number for each in found)
    if transaction.outcome is Outcome.ABORTED and found:
        return "aborted, but visible", _place(found[0])
    if any(count > 1 for count in times.values()):
        number = next(number for number, count in times.items() if count > 1)
        places = [_place(each) for each in found if each.entry.number == number]
        return "doubled", f"record {number} at {' and '.join(places)}"
    missing = sorted(set(range(transaction.of)) - times.keys())
    if missing and found:
        return "torn", f"records {missing} of {transaction.of} missing, {_place(found[0])} is there"
    if missing and transaction.outcome is Outcome.COMMITTED:
        return "lost", f"none of its {transaction.of} records is there"
    return None


def copy_faults(group: str, visible: Collection[Visible], copies: Iterable[Copy]) -> list[str]:
    """Say what a group has lost, copied twice, or copied without it being visible."""
    times = Counter((copy.partition, copy.offset, entry_of(copy.value)) for copy in copies)
    expected = {(each.partition, each.offset, each.entry) for each in visible}
    faults = {
        "never copied": expected - times.keys(),
        "copied more than once": {each for each, count in times.items() if count > 1},
        "copied, but not visible": times.keys() - expected,
    }
    return _told(
        f"records, by {group}",
        {
            what: [_place(Visible(*each)) for each in sorted(found)]
            for what, found in faults.items()
        },
    )


def _place(visible: Visible) -> str:
    entry = visible.entry
    where = f"entries-{visible.partition} at {visible.offset}"
    return f"{where} ({entry.txn} record {entry.number} of {entry.of})"


def _told(what: str, faults: Mapping[str, list[str]]) -> list[str]:
    return [
        f"{len(found)} {what}, {fault}; the first: {found[0]}"
        for fault, found in faults.items()
        if found
    ]
