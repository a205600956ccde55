"""The console in Chromium: what each screen promises, on magnetar and on Apache Kafka."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from selenium.webdriver.common.keys import Keys

from compat_tests import confluent_client
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.console import PHONE, Browser, console
from compat_tests.secured import secured_broker, write_certificates
from compat_tests.transaction_ends import await_end
from compat_tests.waiting import eventually

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
#: Every page that a person reaches without a topic, group or id.
PAGES = ("/transactions", "/groups", "/topics", "/configs", "/access", "/nodes")


def begun(broker: Broker, transactional_id: str, topic: str, *texts: str) -> Producer:
    """Return a producer with an open transaction that holds these records."""
    producer = confluent_client.producer(
        broker.bootstrap, transactional_id=transactional_id, client_id="etl-app"
    )
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, topic, *texts)
    return producer


def send(producer: Producer, topic: str, *texts: str | bytes) -> None:
    for text in texts:
        producer.produce(topic, text, partition=0)
    assert producer.flush(30) == 0


def test_an_open_transaction_is_seen_with_what_it_holds_back_and_is_aborted(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, etl = topic("orders"), name("etl")
    producer = begun(broker, etl, orders, "a", "b")
    send(confluent_client.producer(broker.bootstrap), orders, "behind")
    browser.go("/transactions", filter=etl)
    ((transactional_id, state, _, _, *_), *_) = browser.rows()
    assert (transactional_id, state) == (etl, "Ongoing")
    blocked = [row for row in browser.rows("main h2 ~ .scroll table") if row[0] == f"{orders}-0"]
    assert [(row[1], row[3], row[4]) for row in blocked] == [(etl, "0", "3")]
    browser.go("/topics/one", name=orders)
    assert f"{etl} for" in browser.text() and "3 wait" in browser.text()

    browser.go("/transactions", filter=etl)
    browser.click("Abort…")
    browser.await_text("This cannot be undone")
    browser.click("Abort the transaction")
    browser.await_text("Aborted", "h1")
    with pytest.raises(KafkaException):
        producer.commit_transaction()


def test_two_tabs_that_abort_the_same_transaction(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    etl = name("etl")
    producer = begun(broker, etl, topic("orders"), "a")
    browser.go("/transactions/abort", id=etl)
    # The other tab's person was faster.
    browser.script(
        "window.other = fetch('/transactions/abort', {method: 'POST', headers: "
        "{'Content-Type': 'application/x-www-form-urlencoded'}, "
        "body: new URLSearchParams(new FormData(document.querySelector('main form')))})"
    )
    assert browser.script("return window.other.then((answer) => answer.status)") == 200
    browser.click("Abort the transaction")
    browser.await_text("has ended", "h1")
    assert "Nothing was done now" in browser.text()
    del producer


@pytest.mark.magnetar_only("joint transactions")
def test_votes_of_a_joint_transaction(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    report, parent = topic("report"), name("nightly")
    voter = begun(broker, f"{parent}~>one", report, "a")
    voter.commit_transaction()
    late = begun(broker, f"{parent}~>two", report, "b")
    browser.go("/transactions", filter=parent)
    assert {row[0]: row[1] for row in browser.rows()} == {
        f"{parent}~>one": "Voted",
        f"{parent}~>two": "Ongoing",
    }
    assert "etl-app" in browser.text()
    browser.go("/transactions/one", id=parent)
    votes = browser.rows("main h2 ~ .scroll table")
    assert [row[:2] for row in votes] == [
        [f"{parent}~>one", "Voted"],
        [f"{parent}~>two", "Ongoing"],
    ]
    late.abort_transaction()


def test_markers_and_aborted_records_are_no_lag_and_the_page_is_live(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group = topic("orders"), name("shop")
    begun(broker, name("etl"), orders, "a", "b").commit_transaction()
    reader = confluent_client.consumer(
        broker.bootstrap, group, **{"isolation.level": "read_committed"}
    )
    reader.subscribe([orders])
    assert len(reader.consume(2, 30)) == 2
    reader.commit(asynchronous=False)
    begun(broker, name("etl"), orders, "never").abort_transaction()
    browser.go("/groups/one", id=group)
    # Behind the committed offset lie an aborted record and one or two markers.
    browser.await_text("It has read everything that it may read.")
    assert browser.rows()[0][3] == "0" and int(browser.rows()[0][4]) >= 2
    browser.go("/groups", filter=group)
    assert browser.rows()[0][4] == "0"
    send(confluent_client.producer(broker.bootstrap), orders, "one more")
    # No reload: the page hears of it.
    eventually(lambda: browser.rows()[0][4] == "1")
    reader.close()
    browser.await_text("Empty")


def test_why_a_group_does_not_advance_names_the_open_transaction(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group, etl = topic("orders"), name("shop"), name("etl")
    send(confluent_client.producer(broker.bootstrap), orders, "seen")
    reader = confluent_client.consumer(
        broker.bootstrap, group, **{"isolation.level": "read_committed"}
    )
    reader.subscribe([orders])
    assert len(reader.consume(1, 30)) == 1
    reader.commit(asynchronous=False)
    producer = begun(broker, etl, orders, "open")
    browser.go("/groups/one", id=group)
    assert f"1 wait behind the open transaction of '{etl}'" in browser.text(".why")
    producer.abort_transaction()
    browser.await_text("It has read everything that it may read.", ".why")
    reader.close()


def test_lag_over_time_is_drawn(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group = topic("orders"), name("shop")
    send(confluent_client.producer(broker.bootstrap), orders, "a")
    reader = confluent_client.consumer(broker.bootstrap, group)
    reader.subscribe([orders])
    assert reader.consume(1, 30)
    reader.commit(asynchronous=False)
    browser.go("/groups/one", id=group)
    browser.await_text("Lag over time")
    eventually(lambda: browser.script("return document.querySelector('canvas') !== null"))
    reader.close()


def test_messages_are_told_apart_by_colour_and_word(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    kept, dropped = name("etl"), name("etl")
    begun(broker, kept, orders, "kept").commit_transaction()
    begun(broker, dropped, orders, "dropped").abort_transaction()
    producer = begun(broker, name("etl"), orders, "undecided")
    await_end(broker.bootstrap, kept)
    await_end(broker.bootstrap, dropped)
    browser.go("/topics/messages", name=orders)
    told = {row[5]: row[2] for row in browser.rows()}
    assert told == {"kept": "committed", "dropped": "aborted", "undecided": "open"}
    colours = browser.script(
        "return [...document.querySelectorAll('td .state')]"
        ".map((each) => getComputedStyle(each).backgroundColor)"
    )
    assert len(set(colours)) == 3
    browser.go("/topics/outcomes", name=orders)
    assert [row[0] for row in browser.rows()] == ["open", "aborted"]
    browser.go("/topics/messages", name=orders, live=1)
    producer.commit_transaction()
    eventually(lambda: browser.rows()[0][2] == "committed")


def test_a_hostile_message_is_text_and_runs_nowhere(
    browser: Browser, broker: Broker, topic: MakeTopic
) -> None:
    orders = topic("orders")
    producer = confluent_client.producer(broker.bootstrap)
    producer.produce(orders, SCRIPT, key=SCRIPT, headers={SCRIPT: SCRIPT})
    producer.produce(orders, bytes(range(256)))
    producer.produce(orders, json.dumps({"a": [1, "é"]}, ensure_ascii=False))
    assert producer.flush(30) == 0
    browser.complaints()
    browser.go("/topics/messages", name=orders)
    assert SCRIPT in browser.text() and "256 B, no text" in browser.text()
    browser.go("/topics/message", name=orders, partition=0, offset=0)
    assert SCRIPT in browser.text("pre")
    assert "owned" not in browser.title
    browser.go("/topics/message", name=orders, partition=0, offset=2)
    assert (
        browser.text("h2 ~ pre") == '{\n  "a": [\n    1,\n    "é"\n  ]\n}' or "é" in browser.text()
    )
    assert browser.complaints() == []


def test_a_record_is_produced_and_found_by_its_text(browser: Browser, topic: MakeTopic) -> None:
    orders = topic("orders")
    browser.go("/topics/produce", name=orders)
    browser.fill("key", "customer-7")
    browser.fill("value", '{"item": "pear"}')
    browser.fill("headers", "source=console")
    browser.click("Write the record")
    browser.await_text("Offset 0", "h1")
    assert "customer-7" in browser.text()
    browser.go("/topics/messages", name=orders, filter="PEAR")
    assert [row[4] for row in browser.rows()] == ["customer-7"]
    browser.go("/topics/messages", name=orders, filter="apple")
    assert "Nothing found" in browser.text()


def test_settings_that_differ_access_and_nodes(
    browser: Browser, broker: Broker, topic: MakeTopic
) -> None:
    orders = topic("orders", **{"retention.ms": "77777"})
    browser.go("/topics/configs", name=orders)
    # Kafka stores a setting of its own for a new topic.
    assert ["retention.ms", "77777"] in [row[:2] for row in browser.rows()]
    assert "segment.bytes" not in browser.text()
    browser.go("/configs")
    assert "offsets.topic.num.partitions" in browser.text()
    browser.go("/access")
    assert "Users" in browser.text() and "SECURITY_DISABLED" in browser.text()
    browser.go("/nodes")
    assert len(browser.rows()) == broker.node_count
    node, address, leads, *_ = browser.rows()[0]
    assert broker.bootstrap in address and int(leads.replace(" ", "")) > 0 and node
    eventually(lambda: "…" not in browser.rows()[0][4])


def test_a_share_group_has_its_members_and_its_lag(
    browser: Browser, broker: Broker, broker_kind: str, topic: MakeTopic, name: MakeName
) -> None:
    if broker_kind == "magnetar":
        # magnetar has no share groups; the page of all groups does without the question.
        browser.go("/groups")
        assert "Groups" in browser.text("h1")
        return
    orders, group = topic("orders"), name("share")
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.subscribe([orders])
    consumer.poll(2)
    send(confluent_client.producer(broker.bootstrap), orders, "a", "b")

    def is_shown() -> bool:
        """Whether the page shows the group, which may come after the first poll."""
        browser.go("/groups/one", id=group)
        text = browser.text()
        return "share group" in text and f"{orders}-0" in text

    eventually(is_shown)
    consumer.close()


def _is_at(browser: Browser, path: str) -> bool:
    return browser.address.startswith(path)


def test_a_choice_made_by_keys_is_not_sent_before_its_button(
    browser: Browser, topic: MakeTopic
) -> None:
    browser.go("/topics/messages", name=topic("orders"))
    for name, wanted in (("from", "offset"), ("kind", "aborted")):
        # Each arrow passes over a choice, which must not load the page.
        browser.find(f"main [name={name}]").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
        assert f"{name}={wanted}" not in browser.address
        browser.find("main button").send_keys(Keys.ENTER)
        eventually(partial(lambda part: part in browser.address, f"{name}={wanted}"))


def test_keys_lead_everywhere_and_a_phone_needs_no_scrolling_aside(browser: Browser) -> None:
    browser.go("/transactions")
    for key, path in zip("gocant", ("/groups", *PAGES[2:], "/transactions"), strict=True):
        browser.press(f"g{key}")
        eventually(partial(_is_at, browser, path))
    browser.press("?")
    assert browser.find("dialog[open]").is_displayed()
    browser.size(*PHONE)
    for path in PAGES:
        browser.go(path)
        assert browser.overflow() == 0, path
    browser.complaints()
    browser.find("#theme").click()
    assert browser.script("return document.cookie").startswith("magnetar-theme=")


def test_a_console_that_loses_its_broker_keeps_the_page_and_says_so(
    chromium: Browser, start_broker: StartBroker
) -> None:
    broker = start_broker("magnetar")
    create_topic(broker.bootstrap, "orders", 1, {})
    with console(broker.bootstrap, "--timeout", "5s") as address:
        chromium.visit(address)
        chromium.go("/topics")
        broker.kill()
        assert "has not answered since" in chromium.await_text("cluster", "#notice")
        assert "orders" in chromium.text()
        chromium.go("/nodes")
        # Of several nodes, the first that is asked is named.
        assert "does not answer" in chromium.text()
        broker.start()
        # By itself, without a reload.
        chromium.await_text("offsets written a second")


def test_a_login_is_a_user_of_the_cluster_whose_acls_hold(
    chromium: Browser, tmp_path: Path
) -> None:
    broker = secured_broker("magnetar", tmp_path / "broker", write_certificates(tmp_path))
    broker.start()
    try:
        create_topic(broker.bootstrap, "secret-orders", 1, {})
        config = tmp_path / "client.properties"
        config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
        with console(
            broker.address("SASL_PLAINTEXT"), "--command-config", str(config), "--read-only"
        ) as address:
            chromium.visit(address)
            chromium.go("/topics")
            assert chromium.address.startswith("/login")
            for password, found in (("wrong", "refused"), ("pw of ada", "Topics")):
                chromium.fill("username", "ada")
                chromium.fill("password", password)
                chromium.find("main button").click()
                chromium.await_text(found)
            # No rule allows her anything.
            assert "secret-orders" not in chromium.text()
            chromium.go("/access")
            assert "CLUSTER_AUTHORIZATION_FAILED" in chromium.text()
            assert "read-only" in chromium.text(".bar") and "ada" in chromium.text(".bar")
            chromium.click("Log out")
            eventually(lambda: chromium.address.startswith("/login"))
    finally:
        broker.kill()
