"""The uniform assignor gives every partition to exactly one reader, evenly, and moves few."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.consumer.assignors import Reader, assign_uniformly
from coordinator.groups.consumer.member import Target

TOPICS = [UUID(int=number) for number in range(1, 4)]
_COUNTS = st.fixed_dictionaries({topic: st.integers(1, 8) for topic in TOPICS})
#: How many members come (positive) or leave, one step after the other.
_STEPS = st.lists(st.integers(-4, 4), min_size=1, max_size=12)


def reader(member_id: str, target: Target) -> Reader:
    return Reader(member_id, None, frozenset(TOPICS), target)


def places(target: Target) -> set[tuple[UUID, int]]:
    return {(topic, partition) for topic, mine in target.items() for partition in mine}


def check(counts: dict[UUID, int], targets: dict[str, Target]) -> None:
    assigned = [place for target in targets.values() for place in places(target)]
    everything = {(topic, partition) for topic, n in counts.items() for partition in range(n)}
    assert set(assigned) == everything, "a partition without a reader"
    assert len(assigned) == len(everything), "a partition with two readers"
    loads = [len(places(target)) for target in targets.values()]
    assert max(loads) - min(loads) <= 1


@given(_COUNTS, _STEPS)
def test_however_members_come_and_go(counts: dict[UUID, int], steps: list[int]) -> None:
    targets: dict[str, Target] = {}
    made = 0
    for step in steps:
        before = dict(targets)
        for _ in range(step):
            made += 1
            targets[f"m{made}"] = {}
        for member_id in sorted(targets)[: max(-step, 0)]:
            del targets[member_id]
        targets = assign_uniformly([reader(*each) for each in targets.items()], counts)
        if targets:
            check(counts, targets)
        if step == 0:
            assert targets == before


def test_what_two_members_leave_goes_to_those_who_have_least() -> None:
    counts = {TOPICS[0]: 6}
    targets: dict[str, Target] = {
        "a": {TOPICS[0]: frozenset({0})},
        "b": {TOPICS[0]: frozenset({1})},
    }
    found = assign_uniformly([reader(*each) for each in targets.items()], counts)
    check(counts, found)
    assert 0 in found["a"][TOPICS[0]]
    assert 1 in found["b"][TOPICS[0]]
