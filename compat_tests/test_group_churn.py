"""Forty members of every library and protocol come, go, are killed and stopped, and the broker is
killed: a short form of `make soak`'s, and what its judges are worth.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from compat_tests.brokers import WORKERS
from compat_tests.churn.coverage import Coverage, gaps
from compat_tests.churn.plan import SETTINGS
from compat_tests.churn.run import DISTURBANCES, churn
from compat_tests.churn.telling import runs
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import StartBroker

SECONDS = 15.0


@pytest.mark.magnetar_only(reason="Apache Kafka takes longer to come back than this lasts")
def test_everything_is_read_and_nothing_has_two_owners(
    broker_kind: str, start_broker: StartBroker
) -> None:
    told: list[str] = []
    verdict = churn(
        start_broker(broker_kind, SETTINGS),
        replace(DISTURBANCES, broker_kill_every_s=6, pause_every_s=4, kill_every_s=3),
        SECONDS,
        told.append,
        # A machine that runs other tests too is slower than that of `make soak`.
        stable_within_s=TIMEOUT_S,
    )
    assert not verdict.faults, (verdict, told)
    assert ("broker kills" if WORKERS == 1 else "node kills") in verdict.summary


def test_stretches_of_offsets_are_told_whole() -> None:
    read = [("a", 0, 5), ("a", 0, 3), ("a", 0, 4), ("a", 1, 5), ("b", 0, 9), ("b", 0, 7)]
    assert list(runs(read)) == [("a", 0, 3, 6), ("a", 1, 5, 6), ("b", 0, 7, 8), ("b", 0, 9, 10)]
    assert list(runs([])) == []


@pytest.mark.parametrize(
    ("stretches", "end", "missing"),
    [
        ([], 0, -1),
        ([], 1, 0),
        ([(0, 5)], 5, -1),
        ([(0, 5)], 6, 5),
        ([(0, 2), (3, 5)], 5, 2),
        ([(3, 5), (0, 4), (1, 2)], 5, -1),
        ([(1, 5)], 5, 0),
    ],
)
def test_what_was_never_read_is_found(
    stretches: list[tuple[int, int]], end: int, missing: int
) -> None:
    coverage = Coverage()
    for first, run_end in stretches:
        coverage.add("orders", 0, first, run_end)
    assert coverage.gap(("orders", 0), end) == missing
    found = list(gaps("group", coverage, {("orders", 0): end}))
    assert len(found) == (missing >= 0)
