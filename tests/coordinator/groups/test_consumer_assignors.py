"""The assignors: everyone gets a fair share; the uniform one moves nothing that need not move."""

from __future__ import annotations

from time import thread_time
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.consumer.assignors import Assignor, Reader, assign_ranges, assign_uniformly
from coordinator.groups.consumer.member import Target
from tests.soak import SOAK

TOPICS = [UUID(int=n) for n in range(1, 5)]


def reader(
    member_id: str, *topics: int, instance: str | None = None, target: Target | None = None
) -> Reader:
    return Reader(member_id, instance, frozenset(TOPICS[n] for n in topics), target or {})


def size(target: Target) -> int:
    return sum(map(len, target.values()))


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool) -> tuple[list[Reader], dict[UUID, int]]:
    """Members with targets of an earlier assignment, some of it gone or no longer theirs."""
    counts = {topic: draw(st.integers(1, 12)) for topic in TOPICS}
    some = st.frozensets(st.sampled_from(TOPICS), max_size=4)
    everyone = draw(some)
    members = [
        Reader(f"m{n}", None, everyone if same_topics else draw(some), {})
        for n in range(draw(st.integers(1, 7)))
    ]
    before = assign_uniformly(members, {t: draw(st.integers(1, 12)) for t in TOPICS})
    kept = [
        Reader(each.member_id, None, each.topics, before[each.member_id])
        for each in members
        if draw(st.integers(0, 4))
    ]
    news = [
        Reader(f"n{n}", None, everyone if same_topics else draw(some), {})
        for n in range(draw(st.integers(0, 3)))
    ]
    return kept + news, counts


def check_complete(
    readers: list[Reader], counts: dict[UUID, int], given_to: dict[str, Target]
) -> None:
    """Assert that each partition of a topic with readers has one owner, which reads the topic.

    Partitions of other topics have no owner.
    """
    by_id = {each.member_id: each for each in readers}
    found = [
        (topic, partition)
        for member_id, target in given_to.items()
        for topic, partitions in target.items()
        for partition in partitions
        if topic in by_id[member_id].topics
    ]
    read = {topic for each in readers for topic in each.topics}
    assert sorted(found) == sorted((t, p) for t in read for p in range(counts[t]))
    assert len(found) == sum(map(size, given_to.values()))
    assert given_to.keys() == by_id.keys()


@pytest.mark.parametrize("assign", [assign_uniformly, assign_ranges])
@pytest.mark.parametrize("same_topics", [True, False])
def test_each_partition_goes_to_one_of_its_readers(assign: Assignor, same_topics: bool) -> None:
    @settings(max_examples=60 * SOAK, deadline=None, database=None)
    @given(groups(same_topics=same_topics))
    def check(group: tuple[list[Reader], dict[UUID, int]]) -> None:
        check_complete(*group, assign(*group))

    check()


@settings(max_examples=60 * SOAK, deadline=None, database=None)
@given(groups(same_topics=True))
def test_members_that_read_the_same_differ_by_one_at_most_and_little_moves(
    group: tuple[list[Reader], dict[UUID, int]],
) -> None:
    readers, counts = group
    found = assign_uniformly(readers, counts)
    sizes = [size(target) for target in found.values()]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    quota = min(sizes, default=0)
    for each in readers:
        had = {
            (topic, partition)
            for topic, partitions in each.target.items()
            for partition in partitions
            if topic in each.topics and partition < counts[topic]
        }
        has = {(t, p) for t, partitions in found[each.member_id].items() for p in partitions}
        assert len(had & has) >= min(len(had), quota), "no more goes than has to"


@settings(max_examples=60 * SOAK, deadline=None, database=None)
@given(groups(same_topics=False))
def test_no_single_move_makes_two_members_more_equal(
    group: tuple[list[Reader], dict[UUID, int]],
) -> None:
    readers, counts = group
    found = assign_uniformly(readers, counts)
    for owner in readers:
        for topic in found[owner.member_id]:
            for other in readers:
                if topic in other.topics:
                    assert size(found[owner.member_id]) - size(found[other.member_id]) < 2


def test_an_assignment_that_is_fair_stays_as_it_is() -> None:
    counts = {topic: 5 for topic in TOPICS}
    readers = [reader(f"m{n}", 0, 1, 2) for n in range(4)]
    first = assign_uniformly(readers, counts)
    again = [reader(each.member_id, 0, 1, 2, target=first[each.member_id]) for each in readers]
    assert assign_uniformly(again, counts) == first


def test_ranges_are_contiguous_and_follow_instance_ids() -> None:
    readers = [reader("z", 0, 1), reader("b", 0, instance="2"), reader("c", 0, instance="1")]
    found = assign_ranges(readers, {TOPICS[0]: 5, TOPICS[1]: 2})
    assert found["c"] == {TOPICS[0]: {0, 1}}
    assert found["b"] == {TOPICS[0]: {2, 3}}
    assert found["z"] == {TOPICS[0]: {4}, TOPICS[1]: {0, 1}}


def test_a_thousand_members_of_many_subscriptions_are_assigned_in_good_time() -> None:
    """Bounded work: this took minutes if each partition looked at each member."""
    counts = {UUID(int=n): 20 for n in range(1, 501)}
    topics = list(counts)
    readers = [Reader(f"m{n}", None, frozenset(topics[n % 100 :: 7]), {}) for n in range(1_000)]
    found = assign_uniformly(readers, counts)
    assert sum(map(size, found.values())) == 10_000


@pytest.mark.parametrize("assign", [assign_ranges, assign_uniformly])
def test_members_that_read_the_same_topics_are_not_looked_for_topic_by_topic(
    assign: Assignor,
) -> None:
    """1,000 members of 1,000 topics, of which two had one more, took a second; the ranges 80 ms."""
    looked_up: list[UUID] = []

    class Watched(UUID):
        def __hash__(self) -> int:
            looked_up.append(self)
            return super().__hash__()

    counts: dict[UUID, int] = {Watched(int=n): 1 for n in range(1, 101)}
    common, more = frozenset([*counts][:99]), frozenset(counts)
    readers = [Reader(f"m{n}", None, more if n < 2 else common, {}) for n in range(100)]
    looked_up.clear()
    found = assign(readers, counts)
    assert sum(map(size, found.values())) == 100
    assert len(looked_up) < 2_500  # Not once for each of 10,000 pairs.


def test_a_thousand_members_of_topics_of_few_partitions_get_ranges_in_good_time() -> None:
    """Bounded work: this took 1.7 s while each member had a range of each topic, mostly empty."""
    counts = {UUID(int=n): 10 for n in range(1, 1_001)}
    readers = [Reader(f"m{n:04}", None, frozenset(counts), {}) for n in range(1_000)]
    began_s = thread_time()
    found = assign_ranges(readers, counts)
    assert thread_time() - began_s < 0.7
    assert {member_id for member_id, target in found.items() if target} == {
        f"m{n:04}" for n in range(10)
    }
    assert sum(map(size, found.values())) == 10_000
