"""Tasks, drivers and the broker are killed at the steps of the exactly-once sink: a short form of
`make soak`'s, and what its judge is worth.
"""

from __future__ import annotations

from collections import Counter

import pytest

from compat_tests.conftest import StartBroker
from compat_tests.sink_crashes.query import PARTITIONS, TASKS, rows_of
from compat_tests.sink_crashes.run import crash_runs, difference

pytestmark = pytest.mark.timeout(400)
RUNS = 4
BATCHES = 5


@pytest.mark.magnetar_only(reason="it has joint transactions")
def test_every_batch_is_written_once_and_whole(broker_kind: str, start_broker: StartBroker) -> None:
    told: list[str] = []
    verdict = crash_runs(start_broker(broker_kind), range(RUNS), told.append)
    assert verdict.faults == [], "\n".join([*told, verdict.summary])
    assert "killed" in verdict.summary


def written(batches: int) -> dict[int, list[str]]:
    """Return the values of each partition after so many batches."""
    found: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    for batch in range(batches):
        for task in range(TASKS):
            for value, partition in rows_of(batch, task):
                found[partition].append(value)
    return found


def test_the_judge_lets_pass_what_is_exactly_there() -> None:
    assert difference(written(BATCHES), BATCHES) == []


def test_the_judge_sees_what_is_lost_doubled_early_and_out_of_order() -> None:
    lost, doubled, early, disorder = (written(BATCHES) for _ in range(4))
    victim = lost[0].pop()
    assert difference(lost, BATCHES) == [f"{victim} is lost"]
    doubled[0].append(doubled[0][-1])
    assert difference(doubled, BATCHES) == [f"{doubled[0][-1]} is there 2 times"]
    part = next(value for values in written(BATCHES + 1).values() for value in values[-1:])
    early[0].append(part)
    assert Counter(difference(early, BATCHES))[f"{part} is there 1 times"] == 1
    disorder[0].reverse()
    (fault,) = difference(disorder, BATCHES)
    assert "out of order" in fault
