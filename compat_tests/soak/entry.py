"""What a writer's record says: whose it is, and how many there are in its transaction."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from compat_tests.soak.plan import ENTRIES_PARTITIONS


class Entry(NamedTuple):
    """Record `number` of the `of` records of transaction `txn`."""

    txn: str
    number: int
    of: int

    def to_value(self) -> bytes:
        return json.dumps(self).encode()


def entry_of(value: bytes) -> Entry:
    return Entry(*json.loads(value))


class Draft(NamedTuple):
    """A transaction to be written: an entry for each of these partitions."""

    txn: str
    partitions: tuple[int, ...]
    commits: bool

    def entries(self) -> Iterator[tuple[int, Entry]]:
        for number, partition in enumerate(self.partitions):
            yield partition, Entry(self.txn, number, len(self.partitions))


def drafts(worker: str, abort_probability: float) -> Iterator[Draft]:
    """Yield transactions of random sizes, each with a name of its own."""
    incarnation = uuid.uuid4().hex[:8]
    for count in itertools.count():
        partitions = random.choices(range(ENTRIES_PARTITIONS), k=random.randint(1, 6))
        commits = random.random() >= abort_probability
        yield Draft(f"{worker}.{incarnation}.{count}", tuple(partitions), commits)
