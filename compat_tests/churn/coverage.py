"""Whether every record was read at least once: what members told, against what was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

Place = tuple[str, int]


class Coverage:
    """What one group has read: unbroken stretches by (topic, partition)."""

    def __init__(self) -> None:
        self._runs: dict[Place, list[tuple[int, int]]] = defaultdict(list)

    def add(self, topic: str, partition: int, first: int, end: int) -> None:
        """Note that offsets from `first` up to `end` (exclusive) were read."""
        self._runs[topic, partition].append((first, end))

    def gap(self, place: Place, end: int) -> int:
        """Return the first offset before `end` that no member read; -1: all were read."""
        reached = 0
        for first, run_end in sorted(self._runs[place]):
            if first > reached:
                break
            reached = max(reached, run_end)
        return reached if reached < end else -1

    def read_count(self) -> int:
        """Return how many records were read, each as often as it was."""
        return sum(end - first for runs in self._runs.values() for first, end in runs)


def gaps(group: str, coverage: Coverage, ends: Mapping[Place, int]) -> Iterable[str]:
    """Yield a sentence for each partition of which a record was never read."""
    for place, end in sorted(ends.items()):
        if (missing := coverage.gap(place, end)) >= 0:
            yield f"{group} never read {place[0]}-{place[1]} at {missing}, which ends at {end}"
