"""Who leads what: the rules of who takes a partition, and that the catalog keeps them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.storage import leadership
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import Change, TopicRow
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.leadership import (
    STEP_BYTES,
    STEP_PARTITIONS,
    STEP_SHARDS,
    STEPS_OF_SHARDS_MAX,
    Led,
    Move,
    TopicLeaders,
    evened,
    in_steps,
    inheritance,
    misplaced,
)
from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.replicas import heir

_TOPIC = UUID(int=7)
_LED = [Led(_TOPIC, index) for index in range(200)]


# --- the rules


def test_a_partition_changes_its_heir_only_where_that_node_goes() -> None:
    before = {one: heir(*one, (1, 2, 3, 4)) for one in _LED}
    after = {one: heir(*one, (1, 2, 4)) for one in _LED}
    assert {one for one in _LED if before[one] != after[one]} == {
        one for one in _LED if before[one] == 3
    }


def test_all_heirs_get_about_as_much() -> None:
    counts = Counter(move.node_id for move in inheritance(_LED, (1, 2, 3, 4)))
    assert set(counts) == {1, 2, 3, 4} and max(counts.values()) - min(counts.values()) < 30


def test_the_order_of_the_nodes_does_not_matter() -> None:
    assert inheritance(_LED, (1, 2, 3)) == inheritance(_LED, (3, 1, 2))


_NODES = range(5)
#: The leaders of each topic's partitions: nodes 3 and 4 are dead in most tests.
_LEADERS = st.lists(st.lists(st.sampled_from(_NODES), max_size=12), max_size=8)


def _topics(leaders: list[list[int]], held: Set[int] = frozenset()) -> list[TopicLeaders]:
    return [TopicLeaders(UUID(int=number), each, held) for number, each in enumerate(leaders)]


def _giver(leaders: list[list[int]], move: Move) -> int:
    return leaders[move.topic_id.int][move.partition]


def _after(leaders: list[list[int]], moves: list[Move]) -> list[list[int]]:
    after = [[*each] for each in leaders]
    assert len({move[:2] for move in moves}) == len(moves)
    for topic_id, partition, node_id in moves:
        after[topic_id.int][partition] = node_id
    return after


def _unevenness(led: Iterable[int], live: Collection[int]) -> int:
    counts = Counter(dict.fromkeys(live, 0)) + Counter(each for each in led if each in live)
    return max(counts[each] for each in live) - min(counts[each] for each in live)


@given(_LEADERS, st.sets(st.sampled_from(_NODES), min_size=1))
def test_nodes_that_move_at_once_are_even_by_topic_and_in_all(
    leaders: list[list[int]], live: set[int]
) -> None:
    topics = _topics(leaders)
    moves = evened(topics, live)
    for move in moves:
        assert move.node_id in live
        assert _giver(leaders, move) in live - {move.node_id}
    after = _after(leaders, moves)
    assert all(_unevenness(each, live) <= 1 for each in after)
    assert _unevenness([node_id for each in after for node_id in each], live) <= 1
    assert not evened(_topics(after), live), "it goes on for ever"


@given(_LEADERS, st.permutations(_NODES))
def test_nodes_that_move_one_after_the_other_are_even_too(
    leaders: list[list[int]], order: list[int]
) -> None:
    for own_id in order * 3:
        moves = evened(_topics(leaders), _NODES)
        leaders = _after(leaders, [move for move in moves if _giver(leaders, move) == own_id])
    assert all(_unevenness(each, _NODES) <= 1 for each in leaders)
    assert _unevenness([node_id for each in leaders for node_id in each], _NODES) <= 1


@given(_LEADERS, st.lists(st.sampled_from(_NODES), max_size=40))
def test_nodes_that_move_one_partition_at_a_time_by_older_plans_are_even_in_the_end(
    leaders: list[list[int]], turns: list[int]
) -> None:
    plans: dict[int, list[Move]] = {node_id: [] for node_id in _NODES}
    # First in the order of `turns`. Then each node in its turn, until no plan has anything left.
    for own_id in (*turns, *(list(_NODES) * 100)):
        if plans[own_id]:
            leaders = _after(leaders, [plans[own_id].pop()])
        else:
            moves = evened(_topics(leaders), _NODES)
            plans[own_id] = [move for move in moves if _giver(leaders, move) == own_id]
            if not moves and not any(plans.values()):
                break
    else:
        raise AssertionError("it goes on for ever")
    assert all(_unevenness(each, _NODES) <= 1 for each in leaders)


@given(st.integers(0, 40))
def test_only_a_node_that_joins_gets_anything_of_a_topic_that_was_even(size: int) -> None:
    even = _topics([[index % 2 for index in range(size)]])
    joining = evened(even, (0, 1, 2))
    assert {move.node_id for move in joining} <= {2}


def test_what_a_node_gets_of_a_busy_topic_counts_before_small_ones_move() -> None:
    topics = _topics([[1], [0], [0, 1, 0]])
    joining = evened(topics, (0, 1, 2))
    assert [(move.topic_id.int, move.node_id) for move in joining] == [(2, 2)]


def test_a_busy_topic_does_not_lie_on_one_node_because_others_lead_enough() -> None:
    topics = _topics([[0, 1] * 6, [0, 1] * 12])
    moves = evened(topics, (0, 1, 2))
    assert Counter((move.topic_id.int, move.node_id) for move in moves) == {(0, 2): 4, (1, 2): 8}


@given(_LEADERS, st.sets(st.integers(0, 11)))
def test_what_is_held_stays_and_counts(leaders: list[list[int]], held: set[int]) -> None:
    live = {0, 1, 2}
    moves = evened(_topics(leaders, held), live)
    assert not {move.partition for move in moves} & held
    after = _after(leaders, moves)
    assert not evened(_topics(after, held), live)
    for led in after:
        counts = Counter(led)
        givers = {node_id for index, node_id in enumerate(led) if index not in held}
        least = min(counts[node_id] for node_id in live)
        assert all(counts[node_id] - least <= 1 for node_id in givers & live)


def test_dead_nodes_get_nothing_and_count_for_nothing() -> None:
    topics = _topics([[1] * 10 + [2] * 30])
    assert not evened(topics, [1])
    assert [move.node_id for move in evened(topics, [1, 3])] == [3] * 5


def test_assigned_replicas_are_preferred_in_their_order() -> None:
    assigned = {_LED[0]: (3, 1, 2), _LED[1]: (4, 3)}
    assert [move.node_id for move in inheritance(_LED[:2], (1, 2), assigned)][0] == 1
    assert inheritance(_LED[1:2], (1, 2), assigned) == inheritance(_LED[1:2], (1, 2))
    assert misplaced(1, assigned, (1, 2, 3)) == [Move(*_LED[0], 3), Move(*_LED[1], 3)]
    assert misplaced(1, assigned, (1, 2)) == []
    assert misplaced(2, assigned, (1, 2)) == [Move(*_LED[0], 1)]


_SHARDS = UUID(int=9)


def _of_shards(count: int) -> list[Move]:
    return [Move(_SHARDS, index, 2) for index in range(count)]


def test_shards_of_coordinators_go_first_and_steps_are_small() -> None:
    moves = [Move(_TOPIC, index, 2) for index in range(100)] + _of_shards(10)
    steps = [*in_steps(moves, {Led(_SHARDS, index): 1_000 for index in range(10)})]
    of_shards = [STEP_SHARDS, STEP_SHARDS, 10 - 2 * STEP_SHARDS]
    assert [len(step) for step in steps] == [*of_shards, STEP_PARTITIONS, 100 - STEP_PARTITIONS]
    assert [move.topic_id for step in steps[:3] for move in step] == [_SHARDS] * 10
    assert sorted(move for step in steps for move in step) == sorted(moves)


def test_shards_with_long_logs_do_not_wait_for_each_other() -> None:
    sizes = [1_000, STEP_BYTES, STEP_BYTES, STEP_BYTES // 2, STEP_BYTES // 2, 1_000]
    shards = {Led(_SHARDS, index): size for index, size in enumerate(sizes)}
    steps = [*in_steps(_of_shards(6), shards)]
    assert [[move.partition for move in step] for step in steps] == [[0, 1], [2], [3, 4], [5]]


@pytest.mark.parametrize("size_bytes", [0, 10 * STEP_BYTES])
def test_a_thousand_shards_take_no_more_steps_than_a_hundred(size_bytes: int) -> None:
    shards = {Led(_SHARDS, index): size_bytes for index in range(1_000)}
    assert len([*in_steps(_of_shards(1_000), shards)]) <= STEPS_OF_SHARDS_MAX


# --- the statements

Open = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "postgresql"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same catalog, each time as another node does."""
    with ExitStack() as stack:
        url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")

        def opened() -> Catalog:
            database = PostgresDatabase(url) if url else None
            catalog = Catalog(None if url else tmp_path, is_shared=True, database=database)
            stack.callback(catalog.close)
            return catalog

        yield opened


def started(catalog: Catalog, *node_ids: int) -> dict[int, int]:
    """Start nodes; return the incarnation of each."""
    return {node_id: catalog.nodes.start(node_id) for node_id in node_ids}


def topic(catalog: Catalog, *leaders: int, is_internal: bool = False) -> UUID:
    placed = tuple(Elsewhere(node_id, 0) for node_id in leaders)
    row = TopicRow(uuid4(), f"t{uuid4().hex}", len(leaders), 1, is_internal, {}, placed)
    catalog.add_topic(row)
    return row.id


def leaders(catalog: Catalog, topic_id: UUID) -> tuple[Elsewhere, ...]:
    row = catalog.topic(topic_id)
    assert row is not None
    return row.leaders


def test_a_node_whose_lease_has_ended_is_taken_over_once(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    epochs = started(first, 1, 2, 3)
    topic_id = topic(first, 1, 2, 1, 1)
    before = leaders(first, topic_id)
    assert not second.nodes.take_over(1, epochs[1]), "its lease is good"
    first.nodes.end_lease(1, epochs[1])
    version, _, _ = second.changes.since(0)
    assert second.nodes.take_over(1, epochs[1])
    assert not first.nodes.take_over(1, epochs[1]), "it was taken over already"
    after = leaders(first, topic_id)
    assert after[1] == before[1]
    moved = [after[index] for index in (0, 2, 3)]
    assert all(one.node_id in (2, 3) for one in moved)
    (epoch,) = {one.leader_epoch for one in moved}
    assert epoch > max(epochs.values()), "no leader had it before"
    _, changes, _ = first.changes.since(version)
    assert changes is not None
    assert {Change("topic", topic_id.hex), Change("node", "1")} <= {*changes}


def test_a_large_node_is_taken_over_in_steps_the_coordinators_first(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "TAKEN_TOGETHER", 10)
    catalog = open_catalog()
    dead: int | None = started(catalog, 1, 2)[1]
    topics = [topic(catalog, *[1] * 6, is_internal=number == 2) for number in range(4)]
    assert dead is not None
    catalog.nodes.end_lease(1, dead)
    left = []
    while (dead := catalog.nodes.take_over(1, dead)) is not None:
        assert catalog.nodes.epochs()[1] == dead, "it is fenced, and cannot come back"
        left.append(catalog.nodes.led_counts().get(1, 0))
        assert {one.node_id for one in leaders(catalog, topics[2])} == {2}
    assert left == [14, 4, 0]


def test_a_node_that_was_slower_changes_nothing(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes try to take over a dead one at the same moment, step by step."""
    monkeypatch.setattr(leadership, "TAKEN_TOGETHER", 1)
    first, second = open_catalog(), open_catalog()
    epochs = started(first, 1, 2)
    topic(first, 1, 1)
    first.nodes.end_lease(1, epochs[1])
    assert first.nodes.take_over(1, epochs[1])
    before = second.changes.count()
    assert second.nodes.take_over(1, epochs[1]) is None
    assert second.changes.count() == before, "no node has to look for what has changed"


def test_nodes_that_are_gone_are_looked_for_only_when_something_has_changed(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    catalog.nodes.end_lease(1, epochs[1])
    counts = Mock(side_effect=catalog.nodes.led_counts)
    monkeypatch.setattr(catalog.nodes, "led_counts", counts)
    for _ in range(3):
        assert catalog.nodes.take_over(1, epochs[1]) is None
    assert counts.call_count == 1
    topic(catalog, 1)
    assert catalog.nodes.take_over(1, epochs[1]) is not None


def test_a_node_that_was_taken_over_is_another_one_when_it_comes_back(
    open_catalog: Open,
) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1, 1)
    catalog.nodes.end_lease(1, epochs[1])
    assert catalog.nodes.take_over(1, epochs[1])
    assert catalog.nodes.epochs()[1] > epochs[1], "its incarnation is fenced"
    assert catalog.nodes.start(1) > leaders(catalog, topic_id)[0].leader_epoch
    assert {one.node_id for one in leaders(catalog, topic_id)} == {2}


def test_a_node_that_was_started_again_is_not_taken_over(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1)
    catalog.nodes.end_lease(1, epochs[1])
    again = catalog.nodes.start(1)
    assert not catalog.nodes.take_over(1, epochs[1])
    assert leaders(catalog, topic_id) == (Elsewhere(1, again),)


def test_a_start_writes_nothing_of_what_the_node_leads(open_catalog: Open) -> None:
    """It may be 60,000 partitions, and a call has two seconds."""
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1, 2)

    def stored() -> list[Any]:
        with catalog.database.statements("look") as statements:
            found = statements.execute("SELECT * FROM partition_leaders ORDER BY partition")
            return found.fetchall()

    before = stored()
    again = catalog.nodes.start(1)
    assert stored() == before
    assert leaders(catalog, topic_id) == (Elsewhere(1, again), Elsewhere(2, epochs[2]))
    assert catalog.nodes.hand_over(1, again, [Move(topic_id, 0, 2)])
    moved = leaders(catalog, topic_id)[0]
    assert moved.node_id == 2 and moved.leader_epoch > again
    later = catalog.nodes.start(2)
    assert leaders(catalog, topic_id) == (Elsewhere(2, later), Elsewhere(2, later))


def test_without_another_live_node_nothing_is_taken_over(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1)
    topic_id = topic(catalog, 1)
    catalog.nodes.end_lease(1, epochs[1])
    assert not catalog.nodes.take_over(1, epochs[1])
    assert leaders(catalog, topic_id) == (Elsewhere(1, epochs[1]),)


def test_a_node_that_leads_nothing_is_left_alone(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    catalog.nodes.end_lease(1, epochs[1])
    version = catalog.changes.count()
    assert not catalog.nodes.take_over(1, epochs[1])
    assert catalog.changes.count() == version


def test_the_first_assigned_replica_that_lives_takes_over(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2, 3, 4)
    topic_id = topic(catalog, *[1] * 20)
    catalog.assign_replicas(topic_id, {index: (1, 4, 3) for index in range(20)})
    row = catalog.topic(topic_id)
    assert row is not None and row.assigned[3] == (1, 4, 3)
    catalog.nodes.end_lease(1, epochs[1])
    catalog.nodes.end_lease(4, epochs[4])
    assert catalog.nodes.take_over(1, epochs[1])
    assert {one.node_id for one in leaders(catalog, topic_id)} == {3}
    catalog.remove_topics([topic_id])
    catalog.assign_replicas(topic_id, {0: (2,)})
    assert catalog.topic(topic_id) is None


def test_a_node_that_leaves_is_given_nothing(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2, 3)
    topic_id = topic(catalog, *[1] * 20)
    catalog.nodes.begin_to_leave(2, epochs[2])
    assert [row.is_leaving for row in catalog.nodes.members()] == [False, True, False]
    assert catalog.nodes.hand_over(1, epochs[1], [Move(topic_id, 0, 2), Move(topic_id, 1, 3)])
    assert [one.node_id for one in leaders(catalog, topic_id)[:2]] == [1, 3]
    catalog.nodes.end_lease(1, epochs[1])
    assert catalog.nodes.take_over(1, epochs[1])
    assert {one.node_id for one in leaders(catalog, topic_id)} == {3}
    catalog.nodes.start(2)
    assert not catalog.nodes.members()[1].is_leaving


def test_what_is_handed_over_gets_a_new_epoch_and_the_rest_stays(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1, 1, 2)
    before = leaders(catalog, topic_id)
    assert catalog.nodes.hand_over(1, epochs[1], [Move(topic_id, 0, 2), Move(topic_id, 2, 1)])
    after = leaders(catalog, topic_id)
    assert after[0].node_id == 2 and after[0].leader_epoch > max(epochs.values())
    assert after[1:] == before[1:], "the third is not the first node's to give"
    # Once more, as after an answer that did not come.
    assert catalog.nodes.hand_over(1, epochs[1], [Move(topic_id, 0, 2)])
    assert leaders(catalog, topic_id) == after


def test_a_fenced_node_hands_nothing_over(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1)
    catalog.nodes.start(1)
    before = leaders(catalog, topic_id)
    assert not catalog.nodes.hand_over(1, epochs[1], [Move(topic_id, 0, 2)])
    assert leaders(catalog, topic_id) == before


def test_nothing_is_handed_over_to_a_dead_node(open_catalog: Open) -> None:
    catalog = open_catalog()
    epochs = started(catalog, 1, 2)
    topic_id = topic(catalog, 1)
    before = leaders(catalog, topic_id)
    catalog.nodes.end_lease(2, epochs[2])
    assert catalog.nodes.hand_over(1, epochs[1], [Move(topic_id, 0, 2)])
    assert leaders(catalog, topic_id) == before
