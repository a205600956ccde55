"""Compare what writers of the bulk topic were told with what each of its readers found.

A record that was acknowledged, or whose transaction was committed, is found by every reader; each
record once and in its writer's order, unless the reader's place is its group's; a reader of
committed data finds nothing of an aborted transaction, and one with an unknown outcome whole or not
at all. Every fault names a witness.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from compat_tests.disk_soak.numbers import Numbers, Run


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


#: A transaction that was never to be committed is one that must not be seen.
_AFTER = {
    "begin": Outcome.ABORTED,
    "committing": Outcome.UNKNOWN,
    "committed": Outcome.COMMITTED,
    "aborted": Outcome.ABORTED,
}


class Written:
    """What all writers have told, by stream."""

    def __init__(self) -> None:
        self.acknowledged: defaultdict[str, Numbers] = defaultdict(Numbers)
        self.transactions: defaultdict[str, dict[Run, Outcome]] = defaultdict(dict)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Fold an event of a writer: of one stream, in the writer's order."""
        name = event["event"]
        if name == "stream":
            self.acknowledged[event["stream"]] = Numbers()
        elif name == "acknowledged":
            for first, end in event["runs"]:
                self.acknowledged[event["stream"]].add(first, end)
        elif name in _AFTER:
            transaction = event["first"], event["end"]
            self.transactions[event["stream"]][transaction] = _AFTER[name]

    def certain(self) -> Iterator[tuple[str, Run]]:
        """Yield what every reader must find."""
        for stream, numbers in self.acknowledged.items():
            yield from ((stream, run) for run in numbers)
        for stream, transactions in self.transactions.items():
            for run, outcome in transactions.items():
                if outcome is Outcome.COMMITTED:
                    yield stream, run

    def counts(self) -> str:
        """Say how many records each writer has written for sure."""
        counts = Counter[str]()
        for stream, (first, end) in self.certain():
            counts[stream.partition(".")[0]] += end - first
        return ", ".join(f"{writer} {count}" for writer, count in sorted(counts.items()))


@dataclass
class Found:
    """What one reader has told, in the order in which it read each partition."""

    reader: str
    reads_committed: bool
    #: Whether its place was kept by the reader itself, so that it reads each record once.
    reads_once: bool
    numbers: defaultdict[str, Numbers] = field(default_factory=lambda: defaultdict(Numbers))
    faults: list[str] = field(default_factory=list)
    _last: dict[str, int] = field(default_factory=dict)

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "torn":
            self.faults.append(f"{self.reader}: a record is torn: {event['where']}")
        elif event["event"] == "read":
            for stream, first, end in event["runs"]:
                self._on_run(stream, first, end)

    def _on_run(self, stream: str, first: int, end: int) -> None:
        last = self._last.get(stream, -1)
        if self.reads_once and first <= last:
            self.faults.append(
                f"{self.reader}: doubled or out of order: record {first} of {stream} after {last}"
            )
        self._last[stream] = max(last, end - 1)
        self.numbers[stream].add(first, end)


def lost(written: Written, found: Found) -> list[str]:
    """Say what the reader should have found and has not."""
    return [
        f"{found.reader}: lost: records {missing[0]} to {missing[1] - 1} of {stream}"
        for stream, run in written.certain()
        for missing in found.numbers[stream].missing(*run)
    ]


def unwanted(written: Written, found: Found) -> list[str]:
    """Say what the reader should not have found."""
    known = written.acknowledged.keys() | written.transactions.keys()
    faults = [f"{found.reader}: never written: {stream}" for stream in found.numbers.keys() - known]
    if not found.reads_committed:
        return faults
    for stream, transactions in written.transactions.items():
        faults += _dirty(found, stream, transactions.items())
    return faults


def _dirty(found: Found, stream: str, transactions: Iterable[tuple[Run, Outcome]]) -> Iterator[str]:
    numbers = found.numbers[stream]
    for (first, end), outcome in transactions:
        count = numbers.count(first, end)
        which = f"of the records {first} to {end - 1} of {stream}, {count} are seen"
        if outcome is Outcome.ABORTED and count:
            yield f"{found.reader}: dirty: {which}, and their transaction was aborted"
        elif outcome is Outcome.UNKNOWN and count not in (0, end - first):
            yield f"{found.reader}: torn: {which}"
