"""The probe of the chaos runs sees one partition among many that is not served."""

from __future__ import annotations

from compat_tests.chaos.probe import PARTITIONS, Sent, is_served


def test_busy_partitions_do_not_hide_one_that_is_not_served() -> None:
    busy = [Sent(1.0, partition, 0.1) for partition in range(PARTITIONS - 1)] * 10
    once, twice = ([Sent(1.0, PARTITIONS - 1, 0.1)] * count for count in (1, 2))
    assert not is_served(busy)
    assert not is_served([*busy, *once])
    assert is_served([*busy, *twice])
