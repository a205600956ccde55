"""The judge of histories tells what a compacted log may lose from what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.checker import judge
from tests.simulation.observations import Observations, Sent

_PARTITION = TopicPartition("compact", 0)
_FIRST = Sent(_PARTITION, "p", 1, "k", "p/1", offset=5, told_s=1.0)
_TOMBSTONE = Sent(_PARTITION, "p", 2, "k", None)


@pytest.mark.parametrize(
    ("later", "is_lost"),
    [
        pytest.param(None, True, id="nothing"),
        pytest.param(_TOMBSTONE, False, id="a tombstone without an answer"),
        pytest.param(replace(_TOMBSTONE, offset=6), False, id="a tombstone"),
        pytest.param(replace(_TOMBSTONE, is_refused=True), True, id="a refused tombstone"),
        pytest.param(replace(_TOMBSTONE, key="other"), True, id="a tombstone of another key"),
        pytest.param(replace(_TOMBSTONE, number=0), True, id="an earlier tombstone"),
        pytest.param(replace(_TOMBSTONE, value="p/2"), True, id="a record without an answer"),
    ],
)
def test_a_record_of_a_compacted_log_is_gone_for_a_later_one_alone(
    later: Sent | None, is_lost: bool
) -> None:
    seen = Observations()
    seen.sent += [_FIRST] if later is None else [_FIRST, later]
    found = judge(seen, {"compact": "compact"})
    assert [each.startswith("lost: p/1") for each in found] == [True] * is_lost
