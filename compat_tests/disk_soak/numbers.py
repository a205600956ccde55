"""Sets of numbers that come in long runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
"""(first, end), exclusive."""


class Numbers:
    """A set of whole numbers, kept as disjoint runs in order."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: list[Run] = []
        for first, end in runs:
            self.add(first, end)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return sum(end - first for first, end in self._runs)

    def add(self, first: int, end: int) -> None:
        """Add the numbers from `first` up to `end`. Numbers that come in order cost the least."""
        if first >= end:
            return
        low = bisect_right(self._runs, first, key=lambda run: run[0])
        if low and self._runs[low - 1][1] >= first:
            low -= 1
        high = low
        while high < len(self._runs) and self._runs[high][0] <= end:
            first = min(first, self._runs[high][0])
            end = max(end, self._runs[high][1])
            high += 1
        self._runs[low:high] = [(first, end)]

    def missing(self, first: int, end: int) -> Iterator[Run]:
        """Yield the runs of [first, end) that are not in the set."""
        at = max(0, bisect_right(self._runs, first, key=lambda run: run[0]) - 1)
        while first < end and at < len(self._runs) and self._runs[at][0] < end:
            held_first, held_end = self._runs[at]
            if held_first > first:
                yield first, held_first
            first = max(first, held_end)
            at += 1
        if first < end:
            yield first, end

    def count(self, first: int, end: int) -> int:
        """Return how many of [first, end) are in the set."""
        return end - first - sum(b - a for a, b in self.missing(first, end))
