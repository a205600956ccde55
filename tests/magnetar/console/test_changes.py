"""Changes: what is shown before one is done, what stops it, and what is said of its end."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

import pytest
from httpx2 import Response

from magnetar.client import ClientError
from magnetar.console.changes import moment_of, pairs, whole
from tests.magnetar.console.browser import SCRAM, Browser
from tests.magnetar.console.fake_cluster import World
from tests.magnetar.console.test_groups_page import world_with_group
from tests.magnetar.console.test_transactions_page import rows, world_with_two
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.describe_groups import DescribedGroupMember
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.offset_commit import OffsetCommitRequest
from wire.messages.produce import ProduceRequest

_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')
EVIL = "<img src=x onerror=alert(1)>"


def hidden(page: str) -> dict[str, str]:
    """Return what the form of a confirmation sends."""
    form = page.partition('class="card confirm change"')[2]
    return {name: html.unescape(value) for name, value in _HIDDEN.findall(form)}


def planned(browser: Browser, path: str, **fields: object) -> str:
    """Return the confirmation that a filled in form leads to."""
    return browser.text(path, go=1, **fields)


def confirmed(browser: Browser, path: str, page: str, **more: str) -> Response:
    """Press the button of a confirmation."""
    return browser.post(path, {**hidden(page), **more})


def test_a_topic_is_planned_checked_by_the_broker_and_then_made() -> None:
    world = World()
    browser = Browser(world)
    page = planned(browser, "/topics/create", name="new", partitions="3", settings="retention.ms=5")
    assert "Create topic new?" in page
    assert rows(page) == [
        "Partitions 3",
        "Replication factor as the cluster&#39;s default says",
    ] + ["retention.ms 5"]
    (asked,) = [each for each in world.asked if isinstance(each, CreateTopicsRequest)]
    assert asked.validate_only and not world.topics
    answer = confirmed(browser, "/topics/create", page)
    assert answer.status_code == 200 and "Topic new is there." in answer.text
    assert len(world.topics["new"]) == 3


def test_what_the_cluster_would_refuse_is_said_beside_what_was_filled_in() -> None:
    answer = Browser(World()).get("/topics/create", go=1, name="né", partitions="7")
    assert answer.status_code == 400
    assert "A topic cannot have that name" in answer.text
    assert "INVALID_TOPIC_EXCEPTION (an invalid name)" in answer.text
    assert 'value="né"' in answer.text and 'value="7"' in answer.text


def test_a_refusal_names_the_user_and_the_right() -> None:
    world = world_with_two()
    world.users["ada"] = "secret"
    world.forbidden = {IncrementalAlterConfigsRequest}
    browser = Browser(world, SCRAM)
    with browser.client:
        token = browser.token("/login")
        browser.post("/login", {"token": token, "username": "ada", "password": "secret"})
        answer = browser.get(
            "/configs/change", go=1, type="topic", name="orders", setting="retention.ms", value="1"
        )
    assert "do not allow the user ada to do that with this topic" in answer.text
    assert "TOPIC_AUTHORIZATION_FAILED" in answer.text and not world.settings


def test_a_topic_goes_when_its_name_is_typed_and_if_it_is_still_the_one_that_was_shown() -> None:
    world = world_with_two()
    browser = Browser(world)
    page = browser.text("/topics/delete", name="orders")
    assert "This cannot be undone" in page and "5 offsets" in page
    for typed in ("", "order"):
        answer = confirmed(browser, "/topics/delete", page, answer=typed)
        assert answer.status_code == 400 and "type orders to confirm" in answer.text
    answer = browser.post("/topics/delete", {**hidden(page), "seen": "of another"})
    assert answer.status_code == 409 and "Nothing was done" in answer.text
    assert "orders" in world.topics
    assert confirmed(browser, "/topics/delete", page, answer="orders").status_code == 200
    assert "orders" not in world.topics


def test_of_two_people_who_delete_a_topic_the_second_is_told_that_it_is_gone() -> None:
    world = world_with_two()
    browsers = Browser(world), Browser(world)
    pages = [each.text("/topics/delete", name="orders") for each in browsers]
    codes = [
        confirmed(browser, "/topics/delete", page, answer="orders").status_code
        for browser, page in zip(browsers, pages, strict=True)
    ]
    assert codes == [200, 404]
    assert sum(isinstance(each, DeleteTopicsRequest) for each in world.asked) == 1


def test_offsets_move_as_shown_though_the_end_moved_on_meanwhile() -> None:
    world = world_with_group(2)
    world.groups["shop"].state, world.groups["shop"].members = "Empty", []
    browser = Browser(world)
    end = world.partition("orders").end
    page = planned(browser, "/groups/reset", id="shop", to="latest")
    assert f"orders-0 2 {end} +{end - 2}" in rows(page)
    assert f"{end - 2} offsets will be passed over, unread." in page
    assert not any(isinstance(each, OffsetCommitRequest) for each in world.asked)
    world.partition("orders").write(b"late")
    assert confirmed(browser, "/groups/reset", page).status_code == 200
    assert world.groups["shop"].committed["orders", 0] == end


def test_a_group_without_a_name_is_seen_reached_and_changed() -> None:
    world = world_with_group(1)
    world.groups[""] = world.groups.pop("shop")
    world.groups[""].state, world.groups[""].members = "Empty", []
    browser = Browser(world)
    assert '<a href="/groups/one?id=" class="id">(empty)</a>' in browser.text("/groups")
    page = browser.text("/groups/one", id="")
    assert '<h1 class="id">(empty)</h1>' in page and "/groups/delete?id=" in page
    assert browser.get("/groups/one").status_code == 404
    assert "(empty)</span>" in browser.text("/groups/reset", id="")
    page = planned(browser, "/groups/reset", id="", to="earliest")
    assert confirmed(browser, "/groups/reset", page).status_code == 200
    assert world.groups[""].committed["orders", 0] == 0
    assert "Delete group (empty)?" in browser.text("/groups/delete", id="")


def test_offsets_that_others_moved_meanwhile_are_shown_again_before_they_are_moved() -> None:
    world = world_with_group(2)
    world.groups["shop"].state, world.groups["shop"].members = "Empty", []
    browser = Browser(world)
    page = planned(browser, "/groups/reset", id="shop", to="earliest")
    world.groups["shop"].committed["orders", 0] = 4
    answer = confirmed(browser, "/groups/reset", page)
    assert answer.status_code == 409 and "orders-0 4 0 −4" in rows(answer.text)
    assert world.groups["shop"].committed["orders", 0] == 4
    assert confirmed(browser, "/groups/reset", answer.text).status_code == 200
    assert world.groups["shop"].committed["orders", 0] == 0


def test_offsets_of_a_group_with_members_are_not_moved_and_the_form_says_so_at_once() -> None:
    world = world_with_group(2)
    world.groups["shop"].members = [DescribedGroupMember(member_id="m")]
    browser = Browser(world)
    assert "Stop them first" in browser.text("/groups/reset", id="shop")
    answer = browser.get("/groups/reset", id="shop", to="earliest", go=1)
    assert answer.status_code == 400 and "Stop them first" in answer.text
    assert browser.get("/groups/delete", id="shop").status_code == 409


def test_records_are_deleted_up_to_the_end_that_was_shown() -> None:
    world = world_with_two()
    browser = Browser(world)
    page = planned(browser, "/topics/trim", name="orders", before="end")
    assert "orders-0 0 5 5" in rows(page)
    world.partition("orders").write(b"late")
    assert confirmed(browser, "/topics/trim", page).status_code == 200
    assert world.trims == {("orders", 0): 5}
    for exact in ("[]", "{", '{"9": 1}', '{"0": "x"}'):
        answer = browser.get("/topics/trim", go=1, name="orders", exact=exact)
        assert answer.status_code == 400, exact


def test_no_record_is_deleted_before_an_offset_beyond_the_end_of_a_partition() -> None:
    """As `magnetar trim` and Kafka refuse it: a digit too many would delete all records."""
    world = world_with_two()
    browser = Browser(world)
    typed = {"before": "offset", "value": "50"}
    for asked in (typed, {**typed, "partition": "0"}, {"exact": '{"0": 6}'}):
        answer = browser.get("/topics/trim", go=1, name="orders", **asked)
        assert answer.status_code == 400
        assert "orders-0 ends at 5, before offset" in answer.text
    page = planned(browser, "/topics/trim", name="orders", before="offset", value="5")
    assert "orders-0 0 5 5" in rows(page)


def test_a_setting_shows_its_value_and_source_before_and_after() -> None:
    world = world_with_two()
    browser = Browser(world)
    fields: Mapping[str, str] = {"type": "topic", "name": "orders", "setting": "retention.ms"}
    page = planned(browser, "/configs/change", value="5", **fields)
    assert "topic orders retention.ms 60000 (topic) 5" in rows(page)
    assert confirmed(browser, "/configs/change", page).status_code == 200
    page = planned(browser, "/configs/change", to="reset", **fields)
    assert confirmed(browser, "/configs/change", page).status_code == 200
    assert world.settings == {"retention.ms": None}
    same = browser.get("/configs/change", go=1, value="60000", **fields)
    assert same.status_code == 400 and "already" in same.text


def test_passwords_and_secret_settings_are_in_no_address_and_on_no_page() -> None:
    world = world_with_two()
    browser = Browser(world)
    page = planned(browser, "/access/user", name="bea", mechanism="SCRAM-SHA-256")
    answer = confirmed(browser, "/access/user", page, answer="pw-one", again="pw-two")
    assert answer.status_code == 400 and "the two passwords differ" in answer.text
    assert "pw-one" not in answer.text
    answer = confirmed(browser, "/access/user", page, answer="pw-one", again="pw-one")
    assert answer.status_code == 200 and "pw-one" not in answer.text and world.users["bea"]
    fields = {"type": "broker", "name": "1", "setting": "ssl.key.password"}
    assert 'name="value"' not in browser.text("/configs/change", **fields)
    page = planned(browser, "/configs/change", **fields)
    answer = confirmed(browser, "/configs/change", page, answer="pw", again="pw")
    assert answer.status_code == 200 and world.settings == {"ssl.key.password": "pw"}


def test_a_cluster_that_goes_away_in_the_middle_leaves_the_outcome_open_and_says_so() -> None:
    world = world_with_two()
    browser = Browser(world)
    page = browser.text("/topics/delete", name="orders")
    world.fatal = {DeleteTopicsRequest}
    answer = confirmed(browser, "/topics/delete", page, answer="orders")
    assert answer.status_code == 502 and "Whether it was done is not known" in answer.text
    assert "Perhaps done" in answer.text and "Not done" not in answer.text
    world.fatal = {ProduceRequest, InitProducerIdRequest}
    token = browser.token("/topics/produce", name="orders")
    answer = browser.post("/topics/produce", {"token": token, "name": "orders", "value": "v"})
    assert "Not done" in answer.text, "without a producer id nothing was written"
    abort = {"token": token, "id": "etl", "seen": "7/0/1000"}
    assert "Perhaps done" in browser.post("/transactions/abort", abort).text
    world.is_down = True
    answer = confirmed(browser, "/topics/delete", page, answer="orders")
    assert answer.status_code == 502 and "not known" not in answer.text


def test_read_only_shows_no_button_and_makes_no_plan() -> None:
    world = world_with_two()
    browser = Browser(world, read_only=True)
    for path in ("/topics", "/topics/one", "/topics/configs", "/groups/one", "/access"):
        page = browser.get(path, name="orders", id="shop").text
        assert not re.search(r"/(delete|create|trim|change|reset|member|rule|quota)[\"?]", page)
    answer = browser.get("/topics/delete", name="orders")
    assert answer.status_code == 403 and "read-only" in answer.text
    token = browser.token("/transactions/abort", id="etl")
    form = {"token": token, "name": "orders", "answer": "orders"}
    assert browser.post("/topics/delete", form).status_code == 403


def test_names_that_are_scripts_are_text_in_every_plan() -> None:
    world = world_with_two()
    world.partition(EVIL)
    world.groups[EVIL] = world_with_group(0).groups["shop"]
    browser = Browser(world)
    for path, fields in (
        ("/topics/delete", {"name": EVIL}),
        ("/topics/partitions", {"name": EVIL, "count": "2"}),
        ("/groups/delete", {"id": EVIL}),
        ("/groups/reset", {"id": EVIL, "to": EVIL}),
        ("/configs/change", {"type": "topic", "name": EVIL, "setting": EVIL, "value": EVIL}),
        ("/access/user", {"name": EVIL}),
        ("/access/rule", {"principal": EVIL, "resource": EVIL}),
        ("/access/quota", {"user": EVIL, "rate": EVIL}),
    ):
        page = browser.get(path, go=1, **fields).text
        assert "<img" not in page and "&lt;img" in page, path


def test_what_is_typed_is_a_number_a_time_or_settings_or_is_refused_in_words() -> None:
    assert whole(" 1 000 ", "n", 0) == 1000 and whole("-5", "n", -9) == -5
    for text in ("²", "1.5", "x", "9" * 30, "--1", ""):
        with pytest.raises(ClientError, match="no whole number"):
            whole(text, "n", 0)
    with pytest.raises(ClientError, match="within 1 and 9"):
        whole("10", "n", 1, 9)
    assert moment_of("1970-01-01T00:00:01", "t") == moment_of("1000", "t") == 1000
    with pytest.raises(ClientError, match="no time"):
        moment_of("yesterday", "t")
    assert pairs("a = 1\n\nb=x=y") == {"a": "1", "b": "x=y"}
    for lines in ("a", "=1", "a=1\na=2"):
        with pytest.raises(ClientError):
            pairs(lines)
