"""Topics, messages with their outcomes, aborted ranges, settings, nodes, and producing."""

from __future__ import annotations

import pytest

from magnetar.client import ClientError
from magnetar.client.batches import Outcome
from magnetar.console.pages.nodes import rates_by_node
from magnetar.console.pages.producing import record_of
from magnetar.console.pages.topics import Range, joined
from magnetar.console.sessions import Ends
from tests.magnetar.console.browser import Browser
from tests.magnetar.console.fake_cluster import World
from tests.magnetar.console.test_groups_page import world_with_group
from tests.magnetar.console.test_transactions_page import rows, world_with_two
from wire.messages.fetch import FetchRequest
from wire.messages.list_offsets import ListOffsetsRequest

SCRIPT = b"<script>document.title='owned'</script>"


def outcomes(page: str) -> list[tuple[str, str]]:
    """Return offset and outcome of each row of messages."""
    found = [row.split() for row in rows(page)]
    return [(row[0], row[2]) for row in found if row[0].isdigit()]


def test_messages_tell_committed_aborted_and_open_apart_by_word() -> None:
    world = world_with_group(0)
    world.partition("orders").write(b"open", producer_id=3)
    page = Browser(world).text("/topics/messages", name="orders", partition=0)
    assert outcomes(page) == [
        ("6", "open"),
        ("4", "committed"),
        ("2", "aborted"),
        ("1", "aborted"),
        ("0", "committed"),
    ]
    everything = Browser(world).text("/topics/messages", name="orders", kind="all")
    assert ("3", "abort") in outcomes(everything) and ("5", "commit") in outcomes(everything)
    for kind, found in (("aborted", ["2", "1"]), ("open", ["6"]), ("markers", ["5", "3"])):
        page = Browser(world).text("/topics/messages", name="orders", kind=kind)
        assert [offset for offset, _ in outcomes(page)] == found


def test_what_ended_behind_an_open_transaction_has_its_own_outcome_and_waits() -> None:
    world = world_with_two()
    orders = world.partition("orders")
    orders.end_transaction(8, commit=False)
    page = Browser(world).text("/topics/messages", name="orders")
    assert outcomes(page)[:2] == [("4", "committed"), ("3", "aborted")]
    assert "waits" in page


def test_filter_offset_and_order() -> None:
    world = World()
    for number in range(300):
        world.partition("orders").write(b"value %d" % number)
    browser = Browser(world)
    page = browser.text("/topics/messages", name="orders", filter="VALUE 17")
    assert [offset for offset, _ in outcomes(page)] == [
        *(str(each) for each in range(179, 169, -1)),
        "17",
    ]
    page = browser.text(
        "/topics/messages", name="orders", partition=0, limit=2, **{"from": "offset", "offset": 9}
    )
    assert [offset for offset, _ in outcomes(page)] == ["9", "10"] and "offset=11" in page
    page = browser.text("/topics/messages", name="orders", partition=0, limit=2)
    assert [offset for offset, _ in outcomes(page)] == ["299", "298"] and "offset=298" in page


def test_a_hostile_record_is_text_on_every_page() -> None:
    world = World()
    world.partition("orders").write(SCRIPT, key=SCRIPT, headers=[("<i>h</i>", SCRIPT)])
    browser = Browser(world)
    for page in (
        browser.text("/topics/messages", name="orders"),
        browser.text("/topics/message", name="orders", partition=0, offset=0),
    ):
        assert "&lt;script&gt;" in page and "<script>document" not in page and "<i>h" not in page
    saved = browser.get("/topics/value", name="orders", partition=0, offset=0)
    assert saved.content == SCRIPT
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")
    assert saved.headers["x-content-type-options"] == "nosniff"


def test_a_message_of_ten_megabytes_is_shown_in_part_and_saved_whole() -> None:
    world = World()
    world.partition("orders").write(b"a" * (10 << 20))
    browser = Browser(world)
    listed = browser.text("/topics/messages", name="orders")
    assert len(listed) < 20_000 and "10.5 MB" in listed
    page = browser.text("/topics/message", name="orders", partition=0, offset=0)
    assert len(page) < 300_000 and "the beginning" in page
    saved = browser.get("/topics/value", name="orders", partition=0, offset=0)
    assert len(saved.content) == 10 << 20


def test_a_topic_of_a_thousand_million_records_is_read_at_its_end_alone() -> None:
    world = World()
    world.partition("orders").end = 10**9
    for number in range(5):
        world.partition("orders").write(b"%d" % number)
    browser = Browser(world)
    page = browser.text("/topics/messages", name="orders", limit=5)
    assert [offset for offset, _ in outcomes(page)] == ["1"] * 5  # "1 000 000 004" and so on
    assert "looked at offsets 999 999 995 to 1 000 000 004, of 0 to 1 000 000 004" in page
    assert sum(isinstance(asked, FetchRequest) for asked in world.asked) == 1


def test_messages_begin_at_a_time_as_people_write_it() -> None:
    world = world_with_group(0)
    browser = Browser(world)
    for time in ("2026-11-21T15:00", "1795273200000"):
        browser.text("/topics/messages", name="orders", **{"from": "time", "time": time})
    asked = [
        each.topics[0].partitions[0].timestamp
        for each in world.asked
        if isinstance(each, ListOffsetsRequest) and each.topics[0].partitions[0].timestamp >= 0
    ]
    assert asked == [1_795_273_200_000] * 2
    answer = browser.get("/topics/messages", name="orders", **{"from": "time", "time": "soon"})
    assert answer.status_code == 400 and "is no time" in answer.text


def test_an_offset_that_is_not_there_is_said_with_what_is() -> None:
    world = world_with_group(0)
    answer = Browser(world).get("/topics/message", name="orders", partition=0, offset=10**12)
    assert answer.status_code == 404 and "begins at 0 and ends before 6" in answer.text
    assert Browser(world).get("/topics/messages", name="none").status_code == 404
    assert Browser(world).get("/topics/messages", name="orders", partition=9).status_code == 404


def test_aborted_and_open_ranges_are_listed_with_their_bounds() -> None:
    world = world_with_group(0)
    world.partition("orders").write(b"open", producer_id=3)
    page = Browser(world).text("/topics/outcomes", name="orders")
    found = [row.split()[:4] for row in rows(page)[1:]]
    assert found == [["open", "6", "6", "1"], ["aborted", "1", "2", "2"]]


def test_neighbouring_ranges_of_one_producer_are_one() -> None:
    def of(outcome: Outcome, first: int, producer_id: int) -> Range:
        return Range(outcome, first, first + 1, 1, producer_id, 0)

    aborted = [of(Outcome.ABORTED, 0, 1), of(Outcome.ABORTED, 1, 1), of(Outcome.ABORTED, 2, 2)]
    assert [(each.first, each.end) for each in joined(aborted)] == [(0, 2), (2, 3)]
    committed = [of(Outcome.COMMITTED, 0, 1), of(Outcome.COMMITTED, 1, 2)]
    assert [(each.first, each.end) for each in joined(committed)] == [(0, 2)]


def test_a_partition_names_what_its_readers_wait_for() -> None:
    page = Browser(world_with_two()).text("/topics/one", name="orders")
    (row,) = [each for each in rows(page) if each.startswith("0 node 1")]
    assert "1 5 - etl for" in row and row.endswith("4 wait")


def test_topics_are_shown_in_pages_and_filtered() -> None:
    world = World()
    for number in range(1000):
        world.partition(f"topic-{number:04}")
    browser = Browser(world)
    first = browser.text("/topics")
    assert "topic-0049" in first and "topic-0050" not in first and "page 1 of 20" in first
    assert "topic-0999" in browser.text("/topics", filter="0999")


def test_groups_of_a_topic() -> None:
    page = Browser(world_with_group(1)).text("/topics/groups", name="orders")
    assert [row.split()[:4] for row in rows(page)[1:]] == [["shop", "Stable", "1", "0"]]


def test_settings_that_differ_come_first_and_secrets_stay_secret() -> None:
    world = world_with_group(0)
    page = Browser(world).text("/topics/configs", name="orders")
    assert "retention.ms" in page and "segment.bytes" not in page and "2 of 3 differ" in page
    assert "secret" in page and "<b>long" not in page
    assert "segment.bytes" in Browser(world).text("/configs", all=1)
    assert Browser(world).get("/configs", type="nothing").status_code == 404


def test_access_shows_each_part_or_why_not() -> None:
    world = World(users={"ada": "secret"})
    page = Browser(world).text("/access")
    assert "SECURITY_DISABLED" in page and "ada" in page and "4 096 iterations" in page
    assert "every other user" in page and "1.0 MB/s" in page


def test_nodes_and_the_rate_between_two_looks() -> None:
    browser = Browser(world_with_two())
    assert "the-cluster" in browser.text("/nodes")
    before = Ends(0.0, {("a", 0): 10})
    now = Ends(2.0, {("a", 0): 30, ("b", 0): 4})
    assert rates_by_node(before, now, {("a", 0): 1, ("b", 0): 2}) == {1: 10.0, 2: 2.0}
    assert rates_by_node(None, now, {}) is None


def test_a_record_is_written_and_shown() -> None:
    world = World()
    world.partition("orders")
    browser = Browser(world)
    form = {
        "token": browser.token("/topics/produce", name="orders"),
        "name": "orders",
        "partition": "0",
        "key": "k",
        "value": '{"a":1}',
        "headers": "source=console\r\n",
    }
    answer = browser.post("/topics/produce", form)
    assert answer.url.path == "/topics/message" and "source" in answer.text
    assert world.partition("orders").end == 1


def test_what_a_form_makes_of_its_fields() -> None:
    record = record_of({"key": "", "value": "a\r\nb", "headers": "n = v"})
    assert record == (None, b"a\nb", None, [("n", b"v")])
    assert record_of({"no_value": "1", "value": "x"}).value is None
    with pytest.raises(ClientError, match="no header"):
        record_of({"headers": "nothing"})
