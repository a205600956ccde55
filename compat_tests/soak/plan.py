"""Who takes part in a soak, and what its process is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from compat_tests.pipeline.job import Job

ENTRIES_PARTITIONS = 6
COPIES_PARTITIONS = 2
GROUPS = 4
MEMBERS = 2
PAUSE_MS = 150
#: Twelve writers over nine transactional ids: in three pairs each fences the other.
WRITERS = tuple(
    (f"writer-{n}", f"id-{n % 9}", "version2_writer" if n % 3 == 2 else "writer") for n in range(12)
)


@dataclass(frozen=True)
class SoakJob(Job):
    """One process: a writer, or a member of one of the groups."""

    #: The module of `compat_tests.soak` that is its worker.
    kind: str = "writer"
    own_id: str = ""
    #: Which copies a member of a group writes.
    group_number: int = -1
    #: A writer's mean pause between transactions.
    pause_ms: int = PAUSE_MS
    batch_records: int = 50
    transaction_timeout_ms: int = 3000

    @property
    def text_topic(self) -> str:
        return entries_topic(self.run)

    @property
    def copies_topic(self) -> str:
        return copies_topic(self.run, self.group_number)

    @property
    def group(self) -> str:
        return f"copiers-{self.run}-{self.group_number}"

    @property
    def transactional_id(self) -> str:
        return f"{self.run}-{self.own_id}"


def entries_topic(run: str) -> str:
    return f"entries-{run}"


def copies_topic(run: str, group_number: int) -> str:
    return f"copies-{run}-{group_number}"


def writers(bootstrap: str, run: str, pause_ms: int) -> list[SoakJob]:
    return [
        SoakJob(worker, bootstrap, run, kind=kind, own_id=own_id, pause_ms=pause_ms)
        for worker, own_id, kind in WRITERS
    ]


def copiers(bootstrap: str, run: str) -> list[SoakJob]:
    """Return the members of all groups. Each has one id for all its incarnations."""
    return [
        SoakJob(name, bootstrap, run, kind="copier", own_id=name, group_number=group)
        for group in range(GROUPS)
        for member in range(MEMBERS)
        for name in [f"copier-{group}-{member}"]
    ]


def from_json(text: str) -> SoakJob:
    fields: dict[str, Any] = json.loads(text)
    return SoakJob(**fields)
