"""How long syncs took: a count in each range, and their sum. One thread writes, others may read."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of the ranges (inclusive), seconds. What took longer is in one more.
BOUNDS_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class SyncDurations:
    """A histogram. Kept per sync, not per append: a sync covers many of them."""

    __slots__ = ("counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Account for one sync."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds
