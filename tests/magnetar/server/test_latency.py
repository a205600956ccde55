"""A histogram of durations by their number of bits."""

from __future__ import annotations

import pytest

from magnetar.server.latency import (
    SUM_NS,
    bounds_seconds,
    cumulated,
    no_durations,
    quantile_seconds,
)


def test_each_bound_counts_what_lies_below_it() -> None:
    durations = no_durations()
    for taken_ns in (1, 1_000, 20_000, 1_000_000, 50_000_000_000):
        durations[taken_ns.bit_length()] += 1
        durations[SUM_NS] += taken_ns
    bounds = bounds_seconds()
    counts = list(cumulated(durations))
    assert len(counts) == len(bounds) + 1
    assert counts[0] == 2  # up to 16 us
    assert counts[1] == 3  # up to 33 us
    assert counts[-2] == 4  # up to 34 s
    assert counts[-1] == 5
    assert counts == sorted(counts)


@pytest.mark.parametrize(("share", "low_s", "high_s"), [(0.5, 0.0005, 0.0011), (0.99, 0.5, 1.1)])
def test_a_quantile_lies_in_the_range_of_its_durations(
    share: float, low_s: float, high_s: float
) -> None:
    durations = no_durations()
    durations[(1_000_000).bit_length()] += 90
    durations[(1_000_000_000).bit_length()] += 10
    assert low_s < quantile_seconds(durations, share) < high_s
    assert quantile_seconds(no_durations(), share) == 0
