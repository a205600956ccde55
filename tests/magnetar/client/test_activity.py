"""Two looks at a cluster say what it does; a screen shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from magnetar.cli.top import drawn
from magnetar.client.activity import Look, compare
from magnetar.client.cluster import TopicPartition
from magnetar.client.groups import ListedGroup
from magnetar.client.transactions import State, Transaction

Ends = Mapping[TopicPartition, int]


def seen(at_s: float, ends: Ends, committed: Mapping[str, Ends] | None = None) -> Look:
    groups = {
        name: ListedGroup(name, "consumer", "consumer", "Stable", 1) for name in committed or {}
    }
    open_one = Transaction("etl", 1, 7, 0, State.ONGOING, None, 60_000, 1_000, [("a", 0)])
    return Look(at_s, 1, ends, groups, committed or {}, [open_one])


def test_rates_are_by_the_second_and_the_busiest_topic_comes_first() -> None:
    activity = compare(
        seen(10.0, {("a", 0): 5, ("a", 1): 5, ("b", 0): 0}),
        seen(12.0, {("a", 0): 7, ("a", 1): 6, ("b", 0): 100}),
    )
    assert [(each.topic, each.end, each.rate) for each in activity.topics] == [
        ("b", 100, 50.0),
        ("a", 13, 1.5),
    ]
    assert activity.rate == 51.5


def test_a_topic_that_is_new_or_was_made_again_does_not_run_backwards() -> None:
    activity = compare(seen(0.0, {("a", 0): 50}), seen(1.0, {("a", 0): 3, ("new", 0): 9}))
    assert {each.topic: each.rate for each in activity.topics} == {"a": 0.0, "new": 0.0}


def test_a_group_has_lag_and_the_rate_at_which_it_commits() -> None:
    ends = {("a", 0): 100, ("a", 1): 10}
    activity = compare(
        seen(0.0, ends, {"late": {("a", 0): 20}, "even": {("a", 1): 10}}),
        seen(2.0, ends, {"late": {("a", 0): 60}, "even": {("a", 1): 10}}),
    )
    assert [(each.group, each.lag, each.rate) for each in activity.groups] == [
        ("late", 40, 20.0),
        ("even", 0, 0.0),
    ]
    assert activity.lag == 40


def test_a_screen_names_what_was_left_out() -> None:
    ends = {(f"topic-{number}", 0): number for number in range(5)}
    activity = compare(seen(0.0, ends), seen(1.0, ends))
    screen = drawn(activity, now_ms=121_000, rows_max=3)
    assert "1 broker, 0 records/s, lag 0, 1 open transaction" in screen
    assert "... and 2 more" in screen
    assert "etl               Ongoing  2m 00s" in screen
    assert json.loads(json.dumps(activity.to_json(121_000)))["open_transactions"][0]["open_for_ms"]
