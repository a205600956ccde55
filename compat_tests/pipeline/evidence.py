"""Which transactions counted an input again or passed it over: what a broker's files tell.

Of a stopped broker of either kind, by `magnetar dump`. Each input that was counted more than once
is told with every committed transaction that counted it, and with that transaction's offsets: who
signed them (`Job.signature`), and the group's generation in the log when they came; and with the
offsets that took the group back before such an input. Each input that was never counted is told
with the offsets that the group first went beyond it with. Offsets of one transaction with two
signatures are not of one member: a client has sent those of an earlier one again. Those of an older
generation than the group's, or signed without one, may be that too.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat_tests.brokers import MAGNETAR, Broker
from compat_tests.pipeline.job import Job

Entry = Mapping[str, Any]
Input = tuple[int, int]
_LINES_MAX = 60


@dataclass
class Transaction:
    """A producer's committed transaction in one partition."""

    producer_id: int
    producer_epoch: int
    #: (offset in the partition, the dump of the record, the group's generation before it).
    records: list[tuple[int, Entry, int]] = field(default_factory=list)
    marker_offset: int = -1


def committed(entries: Iterable[Entry], group: str = "") -> list[Transaction]:
    """Return the committed transactions of a dump of one partition, in the order of their markers.

    `group`: whose generations are told apart.
    """
    open_now: dict[int, Transaction] = {}
    ended = []
    generation = -1
    batch: Entry = {}
    for entry in entries:
        if entry["kind"] == "batch":
            batch = entry
            if "marker" in entry:
                transaction = open_now.pop(entry["producer_id"], None)
                if transaction is not None and entry["marker"] == "commit":
                    transaction.marker_offset = entry["base_offset"]
                    ended.append(transaction)
        elif entry["kind"] == "record" and "marker" not in batch:
            decoded = entry.get("decoded") or {}
            if decoded.get("type") == "GroupMetadata" and decoded["group"] == group:
                generation = decoded.get("generation", -1)
            if batch.get("transactional"):
                producer_id, epoch = batch["producer_id"], batch["producer_epoch"]
                transaction = open_now.setdefault(producer_id, Transaction(producer_id, epoch))
                transaction.records.append((entry["offset"], entry, generation))
    return ended


def told(
    job: Job,
    again: Iterable[Input],
    counting: Sequence[Transaction],
    committing: Sequence[Transaction],
) -> list[str]:
    """Return a paragraph for each set of transactions that have counted the same inputs.

    `counting` are those of the topic of counted inputs, `committing` those of the group's offsets.
    """
    counted_by: dict[Input, list[int]] = defaultdict(list)
    for number, transaction in enumerate(counting):
        for each in _inputs(transaction):
            counted_by[each].append(number)
    inputs_of: dict[tuple[int, ...], list[Input]] = defaultdict(list)
    for each in sorted(again):
        inputs_of[tuple(counted_by[each])].append(each)
    lines = []
    for numbers, inputs in inputs_of.items():
        lines.append(f"{_named(inputs)}, counted by:")
        for number in numbers:
            lines += _lines_of(job, counting[number], committing)
    return lines


def passed_over(
    job: Job, never: Iterable[Input], committing: Iterable[Transaction]
) -> Iterator[str]:
    """Yield a paragraph for each transaction that went beyond inputs that were never counted."""
    left = set(never)
    for transaction in committing:
        ends = _reached(transaction, job)
        passed = sorted(each for each in left if each[1] < ends.get(each[0], 0))
        if passed:
            left.difference_update(passed)
            yield f"{_named(passed)}, passed over by {_producer(transaction)}:"
            yield from _offset_lines(transaction)


def moved_back(
    job: Job, again: Iterable[Input], committing: Iterable[Transaction]
) -> Iterator[str]:
    """Yield a paragraph for each transaction that took the group back before such an input."""
    positions: dict[int, int] = {}
    inputs = sorted(again)
    for transaction in committing:
        ends = _reached(transaction, job)
        back = [
            (partition, offset)
            for partition, offset in inputs
            if partition in ends and ends[partition] <= offset < positions.get(partition, 0)
        ]
        if back:
            yield f"{_named(back)}, taken back by {_producer(transaction)}:"
            yield from _offset_lines(transaction)
        positions.update(ends)


def evidence(broker: Broker, job: Job, again: Sequence[Input], never: Sequence[Input]) -> list[str]:
    """Return what a stopped broker's files tell of these inputs: all of the above."""
    if not again and not never:
        return []
    counting = committed(_dump(broker.partition_directory(job.inputs_topic, 0)))
    committing: list[Transaction] = []
    for number in range(int(broker.settings["offsets.topic.num.partitions"])):
        path = broker.partition_directory("__consumer_offsets", number)
        if path.exists():
            committing += committed(_dump(path), job.group)
    lines = [
        *told(job, again, counting, committing),
        *moved_back(job, again, committing),
        *passed_over(job, never, committing),
    ]
    left_out = len(lines) - _LINES_MAX
    return lines if left_out <= 0 else [*lines[:_LINES_MAX], f"and {left_out} lines more"]


def _dump(path: Path) -> Iterator[Entry]:
    command = [str(MAGNETAR), "dump", str(path), "--json", "--records"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    yield from map(json.loads, ended.stdout.splitlines())


def _inputs(transaction: Transaction) -> Iterator[Input]:
    for _, record, _ in transaction.records:
        for partition, offsets in json.loads(record["value"]).items():
            for offset in offsets:
                yield int(partition), offset


def _named(inputs: Sequence[Input]) -> str:
    first, last = inputs[0], inputs[-1]
    return f"{len(inputs)} inputs, text-{first[0]} at {first[1]} to text-{last[0]} at {last[1]}"


def _lines_of(
    job: Job, transaction: Transaction, committing: Iterable[Transaction]
) -> Iterator[str]:
    at, record, _ = transaction.records[0]
    yield (
        f"  {job.group}-{record['key']}, {_producer(transaction)}:"
        f" {job.inputs_topic} at {at}, committed at {transaction.marker_offset}"
    )
    ends: dict[int, int] = {}
    for partition, offset in _inputs(transaction):
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    found = (one for one in committing if one.producer_id == transaction.producer_id)
    offsets = next((one for one in found if ends.items() <= _reached(one, job).items()), None)
    if offsets is None:
        yield f"    no offsets were committed with it; they should be {ends}"
    else:
        yield from _offset_lines(offsets)


def _offset_lines(transaction: Transaction) -> Iterator[str]:
    for offset_at, record, generation in transaction.records:
        decoded = record["decoded"]
        signature = decoded["metadata"].rstrip("\0")
        yield (
            f"    text-{decoded['partition']} to {decoded['offset']} by {signature}:"
            f" __consumer_offsets at {offset_at}, in generation {generation} of the group,"
            f" committed at {transaction.marker_offset}"
        )


def _reached(transaction: Transaction, job: Job) -> dict[int, int]:
    """Return, by partition, the offset that the transaction committed for the group."""
    return {
        decoded["partition"]: decoded["offset"]
        for _, record, _ in transaction.records
        if (decoded := record.get("decoded") or {}).get("group") == job.group
    }


def _producer(transaction: Transaction) -> str:
    return f"producer {transaction.producer_id} epoch {transaction.producer_epoch}"
