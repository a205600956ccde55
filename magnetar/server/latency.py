"""How long requests took, by API: a histogram with bounds that are powers of two of nanoseconds.

So the range of a duration is the number of its bits: an observation costs a subtraction and two
additions, 0.2 us, where a search among bounds would cost as much again.
"""

from __future__ import annotations

from collections.abc import Iterator

#: The index of the first range that is told apart, of up to 2^14 ns (16 us), and of the last bound,
#: 2^35 ns (34 s). Durations of up to 2^63 ns have an index: 292 years.
FIRST, LAST = 14, 35
#: Behind the counts stands the sum of all durations, in ns.
SUM_NS = 64

#: The counts by number of bits, then the sum.
Durations = list[int]


def no_durations() -> Durations:
    """Return the durations of an API before its first request."""
    return [0] * (SUM_NS + 1)


def bounds_seconds() -> list[float]:
    """Return the upper bounds of the ranges that are told, all but the infinite one."""
    return [(1 << bits) / 1e9 for bits in range(FIRST, LAST + 1)]


def cumulated(durations: Durations) -> Iterator[int]:
    """Yield how many durations lie at or below each bound; the last one counts all."""
    seen = sum(durations[:FIRST])
    for bits in range(FIRST, LAST + 1):
        seen += durations[bits]
        yield seen
    yield sum(durations[:SUM_NS])


def quantile_seconds(durations: Durations, share: float) -> float:
    """Return the bound below which that share of the durations lies, evenly spread in its range."""
    wanted = share * sum(durations[:SUM_NS])
    seen = 0
    for bits, count in enumerate(durations[:SUM_NS]):
        if count and seen + count >= wanted:
            lower = (1 << bits) >> 1
            return (lower + ((1 << bits) - lower) * (wanted - seen) / count) / 1e9
        seen += count
    return 0.0
