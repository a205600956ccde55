"""What docs/scaling.md says of more cores is what is computed, and what the queues show."""

from __future__ import annotations

from random import Random

import pytest

from tools import scaling


def test_the_page_shows_what_the_tool_finds() -> None:
    page = scaling.PAGE.read_text()
    assert scaling.drawn(page) == page, "run: python -m tools.scaling --document"


@pytest.mark.parametrize("load", scaling.LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_queues_bring_what_is_computed(load: scaling.Load, nodes: int) -> None:
    per_s, _ = scaling.simulated(load, nodes)
    assert per_s == pytest.approx(scaling.computed(load, nodes), rel=0.08)


def test_a_node_works_on_one_thing_at_a_time_and_nodes_side_by_side() -> None:
    queues = scaling.Queues(2, Random(1))
    ended: list[tuple[str, float]] = []
    for name, node in (("first", 0), ("second", 0), ("other", 1)):

        def work(node: int = node) -> scaling.Work:
            yield scaling.Compute(node, 100.0)

        queues.carry_out(work(), lambda name=name: ended.append((name, queues.now_us)))  # type: ignore[misc]  # a default binds it now
    queues.run(1000.0)
    at = dict(ended)
    assert 50 <= at["first"] <= 150 and 50 <= at["other"] <= 150
    assert 50 <= at["second"] - at["first"] <= 150


def test_what_waits_during_a_sync_rides_the_next_one() -> None:
    queues = scaling.Queues(1, Random(1))
    ended: list[float] = []

    def work() -> scaling.Work:
        yield scaling.Sync(0)

    for _ in range(4):
        queues.carry_out(work(), lambda: ended.append(queues.now_us))
    queues.run(1000.0)
    first, *others = ended
    assert 100 <= first <= 153, "alone in its sync"
    assert len(set(others)) == 1 and 100 <= others[0] - first <= 153, "the others share one"


def test_other_nodes_of_a_transaction_are_counted() -> None:
    assert [scaling.other_nodes(4, nodes) for nodes in (1, 2, 4, 8)] == [0, 1, 3, 3.5]
    assert [scaling.other_nodes(1, nodes) for nodes in (1, 2, 4)] == [0, 0.5, 0.75]
