"""What a topic holds: every record, or the committed ones; and whether each is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from magnetar.client.cluster import Client
from magnetar.client.consumer import Fetched, Reader
from magnetar.client.partitions import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)

_SHOWN = 5


class Record(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def read(client: Client, topic: str, *, committed: bool) -> list[Record]:
    """Return the records that are there now, partition by partition, in order.

    `committed`: without those of open and of aborted transactions, and those behind an open one.
    """
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    leaders = client.topics([topic])
    positions = list_offsets(client, leaders, leaders, EARLIEST, isolation)
    until = list_offsets(client, leaders, leaders, LATEST, isolation)
    reader = Reader(client, leaders, positions, isolation, waits=False, until=until)
    found: list[Record] = []
    while not reader.is_finished:
        found += map(_record, reader.fetch())
    return sorted(found, key=lambda each: each[:2])


def _record(fetched: Fetched) -> Record:
    record = fetched.record
    return Record(
        fetched.partition,
        record.offset,
        record.timestamp,
        None if record.key is None else bytes(record.key),
        None if record.value is None else bytes(record.value),
        tuple(
            (name, None if value is None else bytes(value)) for name, value in record.headers or ()
        ),
    )


def check_once(
    topic: str, records: Iterable[Record], expected: Iterable[bytes | None] | None
) -> None:
    """Raise AssertionError where a value is there twice, is missing, or was not expected.

    Without `expected`: where two records have the same key and value.
    """
    if expected is None:
        seen: Counter[Hashable] = Counter((each.key, each.value) for each in records)
        twice = [what for what, count in seen.items() if count > 1]
        if twice:
            raise AssertionError(f"{topic}: more than once: {_shown(twice)}")
        return
    found, wanted = Counter(each.value for each in records), Counter(expected)
    mistakes = []
    if missing := wanted - found:
        mistakes.append(f"missing: {_shown(missing)}")
    if surplus := found - wanted:
        again = [value for value in surplus if value in wanted]
        strange = [value for value in surplus if value not in wanted]
        mistakes += [f"more than once: {_shown(again)}"] if again else []
        mistakes += [f"not expected: {_shown(strange)}"] if strange else []
    if mistakes:
        raise AssertionError(f"{topic}: {'; '.join(mistakes)}")


def _shown(values: Iterable[object]) -> str:
    listed = list(values)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(repr, listed[:_SHOWN])) + more
