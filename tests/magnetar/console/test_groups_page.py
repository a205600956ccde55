"""Lag without markers and aborted records, its history, and groups that are large."""

from __future__ import annotations

import re
import struct
import time

import pytest

from magnetar.client.group_lags import Standing
from magnetar.client.groups import list_groups
from magnetar.client.true_lag import TrueLag
from magnetar.console.lag_history import LOOKBACK, SAMPLES_MAX, LagHistory
from magnetar.console.pages.groups import chart, curve
from tests.magnetar.console.browser import Browser
from tests.magnetar.console.fake_cluster import FakeClient, Group, World
from tests.magnetar.console.test_transactions_page import rows, world_with_two
from wire.messages.describe_groups import DescribedGroupMember
from wire.messages.fetch import FetchRequest


def world_with_group(committed: int) -> World:
    """Offsets of orders-0: 0 plain, 1-2 aborted, 3 marker, 4 committed, 5 marker."""
    world = World()
    orders = world.partition("orders")
    orders.write(b"plain")
    orders.write(b"x", b"y", producer_id=1)
    orders.end_transaction(1, commit=False)
    orders.write(b"kept", producer_id=2)
    orders.end_transaction(2, commit=True)
    world.groups["shop"] = Group(committed={("orders", 0): committed})
    return world


def history_of(world: World) -> LagHistory:
    return LagHistory(lambda question: question(FakeClient(world)), TrueLag(), lambda: 0.0)


def test_markers_and_aborted_records_are_no_lag() -> None:
    browser = Browser(world_with_group(1))
    (row,) = [each for each in rows(browser.text("/groups")) if each.startswith("shop")]
    assert row.split()[:6] == ["shop", "Stable", "classic", "0", "1", "0"]
    (place,) = [each for each in rows(browser.text("/groups/one", id="shop")) if "orders-0" in each]
    # Committed 1, end 6: one record to read, four offsets that are none.
    assert place.split()[:6] == ["orders-0", "1", "6", "1", "4", "0"]


def test_a_group_that_stands_before_a_last_marker_has_read_everything() -> None:
    browser = Browser(world_with_group(5))
    page = browser.text("/groups/one", id="shop")
    (place,) = [each for each in rows(page) if "orders-0" in each]
    assert place.split()[:5] == ["orders-0", "5", "6", "0", "1"]


def test_what_lies_behind_an_open_transaction_is_told_apart() -> None:
    world = world_with_two()
    world.groups["shop"] = Group(committed={("orders", 0): 0})
    browser = Browser(world)
    (row,) = [each for each in rows(browser.text("/groups")) if each.startswith("shop")]
    assert row.split()[4:6] == ["1", "4"]


def test_why_a_group_does_not_advance_names_the_transaction() -> None:
    world = world_with_two()
    world.groups["shop"] = Group(committed={("orders", 0): 1})
    page = Browser(world).text("/groups/one", id="shop")
    assert "orders-0: 4 wait behind the open transaction of &#39;etl&#39;" in page


def test_a_group_of_a_thousand_members_is_shown_in_pages() -> None:
    world = world_with_group(1)
    world.groups["shop"].members = [
        DescribedGroupMember(member_id=f"member-{number:04}", client_id="c", client_host="/h")
        for number in range(1000)
    ]
    browser = Browser(world)
    first = browser.text("/groups/one", id="shop")
    assert "member-0099" in first and "member-0100" not in first and "of 1 000" in first
    assert "member-0999" in browser.text("/groups/one", id="shop", members=10)


def test_a_topic_that_is_gone_leaves_the_group_readable() -> None:
    world = world_with_group(1)
    world.groups["shop"].committed["deleted", 3] = 17
    page = Browser(world).text("/groups")
    assert [row for row in rows(page) if row.startswith("shop")]


def test_a_group_that_ends_while_it_is_looked_at_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_with_group(1)
    listed = list_groups(FakeClient(world))
    monkeypatch.setattr("magnetar.console.pages.groups.list_groups", lambda _: listed)
    world.groups["other"] = world.groups.pop("shop")
    page = Browser(world).text("/groups")
    assert [row for row in rows(page) if row.startswith("shop")]


def test_the_history_keeps_a_bounded_number_of_samples_and_forgets_groups_that_are_gone() -> None:
    world = world_with_group(1)
    history = history_of(world)
    client = FakeClient(world)
    for _ in range(SAMPLES_MAX + 3):
        history.take(client)
    history.stop()
    assert len(history.of("shop")) == SAMPLES_MAX
    assert history.of("shop")[-1][1:] == (1, 0)
    earlier = history.earlier("shop")
    assert earlier is not None and earlier.committed == {("orders", 0): 1}
    assert LOOKBACK < SAMPLES_MAX
    world.groups.clear()
    history.take(client)
    assert history.of("shop") == [] and history.earlier("shop") is None


@pytest.mark.parametrize("set_by_s", [-86_400, 86_400])
def test_how_long_a_group_was_watched_does_not_change_with_the_wall_clock(
    set_by_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with_group(1)
    reads = struct.pack(">hih6siii", 0, 1, 6, b"orders", 1, 0, -1)
    world.groups["shop"].members = [DescribedGroupMember(member_id="m", member_assignment=reads)]
    history = LagHistory(lambda question: question(FakeClient(world)), TrueLag())
    history.take(FakeClient(world))
    watched = history.earlier("shop")
    monkeypatch.setattr(LagHistory, "earlier", lambda *_: watched)
    wall_s = time.time() + set_by_s
    monkeypatch.setattr(time, "time", lambda: wall_s)
    page = Browser(world).text("/groups/one", id="shop")
    assert re.search(r"Member m has the partition, and committed nothing in \d s\.", page)


def test_a_curve_needs_two_samples_and_ends_at_the_right() -> None:
    assert curve([]) == ""
    world = world_with_group(1)
    history = history_of(world)
    history.stop()
    history.take(FakeClient(world))
    history.take(FakeClient(world))
    assert curve(history.of("shop")) == "0.0,1.0 60.0,1.0"
    assert chart(history.of("shop"))["series"][0]["values"] == [1, 1]


def test_a_standing_in_a_topic_that_cannot_be_asked_has_no_lag() -> None:
    assert Standing("gone", 0, 5, -1, -1).lag == 0


def test_a_count_is_bounded_and_goes_on_where_it_ended() -> None:
    world = World()
    for number in range(50):
        world.partition("orders").write(b"%03d" % number * 100)
    client, leaders, place = FakeClient(world), {("orders", 0): 1}, ("orders", 0)
    bounded = TrueLag(bytes_max=1000).count(client, leaders, place, 0, 50)
    assert 0 < bounded.records < 50 and bounded.records_max == 50
    true_lag = TrueLag()
    assert true_lag.known(place, 0, 50).unseen == 50
    assert true_lag.count(client, leaders, place, 0, 50).records == 50
    world.asked.clear()
    assert true_lag.count(client, leaders, place, 0, 50).records == 50 and not world.asked
    world.partition("orders").write(b"more")
    assert true_lag.count(client, leaders, place, 0, 51).records == 51
    (fetch,) = world.asked
    assert isinstance(fetch, FetchRequest)
    assert fetch.topics[0].partitions[0].fetch_offset == 50
    # Deleted and made anew.
    assert true_lag.count(client, leaders, place, 0, 10).records == 10
