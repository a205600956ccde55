"""A node that stands still: the others are shown, the node is named, and waited for once."""

from __future__ import annotations

import pytest

from magnetar.client import Client
from magnetar.client.security import PLAINTEXT
from magnetar.console import sessions
from magnetar.console.lag_history import Earlier, LagHistory
from magnetar.console.sessions import Access
from tests.magnetar.console.browser import Browser
from tests.magnetar.console.fake_cluster import FakeClient, World
from tests.magnetar.console.test_groups_page import world_with_group
from tests.magnetar.console.test_transactions_page import rows, world_with_two

NOTICE = "Node 2 does not answer: what it leads and coordinates is missing here."


def of_two_nodes(world: World) -> World:
    """Let node 2 lead orders-1, and stand still."""
    world.nodes = (1, 2)
    world.partition("orders", 1).write(b"of node 2")
    world.silent = {2}
    return world


def test_partitions_of_the_others_are_shown_and_the_node_is_waited_for_once() -> None:
    world = of_two_nodes(world_with_two())
    browser = Browser(world)
    page = browser.text("/topics/one", name="orders")
    assert NOTICE in page and world.waits == 1
    shown = {row.split()[0]: row for row in rows(page) if row[0].isdigit()}
    assert "node 1 1 of 1 0" in shown["0"] and "etl" in shown["0"]
    assert "node 2 does not answer 1 of 1 - - - - -" in shown["1"]
    assert NOTICE in browser.text("/topics") and "etl" in browser.text("/transactions")
    assert "behind" in browser.text("/topics/messages", name="orders")
    assert world.waits == 1


def test_every_node_has_a_row_and_says_no_figure_that_is_not_known() -> None:
    browser = Browser(of_two_nodes(world_with_two()))
    browser.get("/nodes")
    page = browser.text("/nodes")
    one, two = (row for row in rows(page) if row[:1].isdigit())
    assert one.startswith("1 controller") and "/data" in one
    assert two.startswith("2 does not answer") and two.endswith("1 0 - - - -") and NOTICE in page
    assert "has no leader" not in page


def test_groups_are_counted_where_they_can_be() -> None:
    world = of_two_nodes(world_with_group(2))
    (group,) = world.groups.values()
    group.committed["orders", 1] = 0
    page = Browser(world).text("/groups")
    assert NOTICE in page and "<b>1</b>" in page


def test_what_the_node_alone_could_say_is_refused_and_the_node_named() -> None:
    browser = Browser(of_two_nodes(world_with_two()))
    for path in ("/topics/messages", "/topics/outcomes"):
        answer = browser.get(path, name="orders", partition=1)
        assert answer.status_code == 404 and NOTICE in answer.text
    answer = browser.get("/configs", type="broker", name="2")
    assert answer.status_code == 502 and "node 2 does not answer" in answer.text
    assert "The cluster does not answer" not in answer.text


def test_a_node_that_answers_again_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_SILENT_S", 0.0)
    world = of_two_nodes(world_with_two())
    browser = Browser(world)
    assert NOTICE in browser.text("/topics")
    world.silent.clear()
    assert NOTICE not in browser.text("/topics")


def test_a_change_rests_on_all_nodes() -> None:
    world = of_two_nodes(world_with_two())
    answer = Browser(world).get("/topics/trim", go=1, name="orders", before="end")
    assert answer.status_code == 502 and "did not answer" in answer.text
    assert not world.trims


def test_the_console_goes_on_where_the_node_that_it_began_with_stands_still() -> None:
    world = world_with_two()
    world.nodes = (1, 2)
    browser = Browser(world)
    assert browser.get("/topics").status_code == 200
    # The first one coordinates all transactions here: what it knows is missing.
    world.silent = {1}
    page = browser.text("/topics")
    assert "Node 1 does not answer" in page and "orders" in page


def test_no_new_connection_waits_for_the_node_that_the_console_began_with() -> None:
    world = world_with_two()
    world.nodes, world.silent = (1, 2), set()
    access = Access(lambda: FakeClient(world, PLAINTEXT))

    def wait_for_one(_: Client) -> frozenset[int]:
        world.silent = {1}
        # Two at once, so that neither has the other one's connection.
        return access.look(lambda _: access.look(lambda client: client.left_out))

    assert access.act(wait_for_one) == {1}
    assert world.waits == 1
    access.close()


def test_a_single_node_is_waited_for_as_long_as_the_command_says() -> None:
    world = world_with_two()
    browser = Browser(world)
    assert browser.get("/topics").status_code == 200
    world.silent = {1}
    answer = browser.get("/topics")
    assert answer.status_code == 502 and "did not answer within 10 s" in answer.text


def test_what_the_node_may_coordinate_is_not_taken_for_what_no_coordinator_knows() -> None:
    world = of_two_nodes(world_with_two())
    # The silent one coordinates, the other one leads orders-0.
    world.nodes, world.silent = (2, 1), set()
    browser = Browser(world)
    assert browser.get("/topics").status_code == 200
    world.silent = {1}
    page = browser.text("/topics/one", name="orders")
    assert "producer 7, which no coordinator that answers knows" in page
    page = browser.text("/transactions")
    assert "No transaction is open, as far as the nodes that answer know." in page
    assert "see everything" not in page
    # An abort rests on what this page lists.
    answer = browser.get("/transactions/hanging")
    assert answer.status_code == 502 and "Drop its records" not in answer.text


def test_a_group_has_not_read_everything_where_a_leader_may_have_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LagHistory, "earlier", lambda *_: Earlier(0.0, {}))
    world = of_two_nodes(world_with_group(2))
    (group,) = world.groups.values()
    group.committed = {("orders", 1): 0}
    page = Browser(world).text("/groups/one", id="shop")
    assert "It has read everything that it may read from the nodes that answer." in page
