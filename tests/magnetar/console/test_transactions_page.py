"""Open transactions, whom they hold back, and aborting them."""

from __future__ import annotations

import re
from importlib.resources import files

from tests.magnetar.console.browser import Browser
from tests.magnetar.console.fake_cluster import Transaction, World
from tests.magnetar.console.fake_partition import Partition
from wire.transaction_tags import CLIENT_TAG, encode_client


def world_with_two() -> World:
    """`etl` is the older one, in orders-0 and audit-0; `bill` waits behind it in orders-0."""
    world = World()
    orders, audit = world.partition("orders"), world.partition("audit")
    orders.write(b"plain")
    orders.write(b"a", b"b", producer_id=7)
    orders.write(b"c", producer_id=8)
    orders.write(b"behind")
    audit.write(b"d", producer_id=7)
    client = ((CLIENT_TAG, encode_client("etl-app", "10.1.4.7:4711")),)
    world.transactions["etl"] = Transaction(
        7, partitions=[("orders", 0), ("audit", 0)], tags=client
    )
    world.transactions["bill"] = Transaction(8, started_ms=5_000, partitions=[("orders", 0)])
    world.transactions["idle"] = Transaction(9, "CompleteCommit")
    return world


def rows(page: str) -> list[str]:
    """Return the text of each row of a page's tables."""
    found = re.findall(r"<tr(?: [^>]*)?>(.*?)</tr>", page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in found]


def test_the_oldest_open_transaction_comes_first_with_what_it_holds_back() -> None:
    page = Browser(world_with_two()).text("/transactions")
    listed = [row for row in rows(page) if "Ongoing" in row]
    assert [row.split()[0] for row in listed] == ["etl", "bill"]
    # Four in orders-0 from its first record on, and one in audit-0; bill is behind it.
    assert " 5 " in listed[0]
    assert "etl-app 10.1.4.7:4711" in listed[0]
    assert " 0 " in listed[1].split("orders-0")[1] + " "
    assert "idle" not in page


def test_each_partition_names_the_transaction_that_its_readers_wait_for() -> None:
    page = Browser(world_with_two()).text("/transactions")
    blocked = page.partition("Who holds back which partition")[2]
    (audit, orders) = [row for row in rows(blocked) if "-0" in row]
    assert audit.startswith("audit-0 etl") and audit.endswith("0 1 -")
    # From offset 1, four records wait, and one transaction is open behind it.
    assert orders.startswith("orders-0 etl") and orders.endswith("1 4 1")


def test_without_open_transactions_the_page_says_that_nothing_is_held_back() -> None:
    world = World()
    world.transactions["idle"] = Transaction(9, "CompleteCommit")
    assert "No transaction is open" in Browser(world).text("/transactions")


def test_an_abort_asks_first_and_then_fences() -> None:
    world = world_with_two()
    browser = Browser(world)
    page = browser.text("/transactions/abort", id="etl")
    assert "This cannot be undone" in page and not world.aborts
    (seen,) = re.findall(r'name="seen" value="([^"]+)"', page)
    form = {"token": browser.token("/transactions/abort", id="etl"), "id": "etl", "seen": seen}
    assert "Aborted" in browser.post("/transactions/abort", form).text
    assert world.aborts == ["etl"]


def test_of_two_browsers_that_abort_the_same_transaction_the_second_is_told_plainly() -> None:
    world = world_with_two()
    forms = []
    for browser in (Browser(world), Browser(world)):
        page = browser.text("/transactions/abort", id="etl")
        (seen,) = re.findall(r'name="seen" value="([^"]+)"', page)
        token = browser.token("/transactions/abort", id="etl")
        forms.append((browser, {"token": token, "id": "etl", "seen": seen}))
    answers = [browser.post("/transactions/abort", form) for browser, form in forms]
    assert [answer.status_code for answer in answers] == [200, 409]
    assert "has ended" in answers[1].text and "Nothing was done now" in answers[1].text
    assert world.aborts == ["etl"]


def test_an_abort_never_meets_a_later_transaction_of_the_same_id() -> None:
    world = world_with_two()
    browser = Browser(world)
    token = browser.token("/transactions/abort", id="etl")
    world.transactions["etl"].epoch += 1
    form = {"token": token, "id": "etl", "seen": "7/0/1000"}
    answer = browser.post("/transactions/abort", form)
    assert answer.status_code == 409 and "this is a later transaction" in answer.text
    assert not world.aborts


def test_read_only_aborts_nothing() -> None:
    world = world_with_two()
    browser = Browser(world, read_only=True)
    assert "Abort…" not in browser.text("/transactions")
    token = browser.token("/transactions/abort", id="etl")
    form = {"token": token, "id": "etl", "seen": "7/0/1000"}
    assert browser.post("/transactions/abort", form).status_code == 403
    assert not world.aborts


def test_an_unknown_id_is_said_to_be_unknown() -> None:
    answer = Browser(World()).get("/transactions/one", id="<b>none</b>")
    assert answer.status_code == 404
    assert "there is no transactional id" in answer.text and "<b>none" not in answer.text


def test_a_transaction_that_no_coordinator_knows_is_found_and_ended_by_a_marker() -> None:
    world = World()
    world.topics["orders"] = [Partition()]
    world.partition("orders").write(b"lost", producer_id=99)
    page = Browser(world).text("/transactions/hanging")
    assert [row for row in rows(page) if row.startswith("orders-0 99")]


def test_an_id_that_turns_the_direction_of_text_is_shown_as_it_is_and_aborted_as_it_is() -> None:
    world = World()
    world.partition("orders").write(b"a", producer_id=7)
    hostile = "bill-\u202egnp.exe"
    world.transactions[hostile] = Transaction(7, partitions=[("orders", 0)])
    browser = Browser(world)
    assert "\u202e" not in browser.text("/transactions")
    page = browser.text("/transactions/abort", id=hostile)
    # The field that the form sends back is the only place.
    assert page.count("\u202e") == 1 and f'name="id" value="{hostile}"' in page
    assert "bill-\\u202egnp.exe" in page


def test_what_a_form_sends_back_is_exact() -> None:
    for template in files("magnetar.console").joinpath("templates").iterdir():
        text = template.read_text()
        sent = re.findall(r'<(?:input|option)[^>]* value="([^"]*)"', text)
        sent += re.findall(r"<textarea[^>]*>(.*?)</textarea>", text)
        for value in re.findall(r"{{.*?}}", " ".join(sent)):
            assert "|exact" in value, template.name
