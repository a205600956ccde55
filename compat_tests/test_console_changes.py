"""What a person changes in the console, in Chromium: looked at first, then done, as that user."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from selenium.webdriver.common.keys import Keys

from compat_tests import confluent_client
from compat_tests.admin import await_leaders, create_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.console import WIDE, Browser, console
from compat_tests.secured import secured_brokers
from compat_tests.waiting import eventually

LOOK = "Show what will happen"


def _allow_all_to_bob(broker: Broker) -> None:
    rule = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls([rule]).values():
        future.result(30)


brokers = secured_brokers(_allow_all_to_bob)


def _ends(broker: Broker, topic: str) -> tuple[int, int]:
    reader = confluent_client.consumer(broker.bootstrap)
    first, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    reader.close()
    return first, end


def _produced(broker: Broker, topic: str, count: int) -> None:
    producer = confluent_client.producer(broker.bootstrap)
    confluent_client.send(producer, topic, [(b"key", b"%d" % each) for each in range(count)])


def _committed(broker: Broker, group: str, topic: str, count: int) -> None:
    """Let a member read and commit so many records, and leave."""
    reader = confluent_client.consumer(broker.bootstrap, group)
    reader.subscribe([topic])
    assert len(reader.consume(count, 30)) == count
    reader.commit(asynchronous=False)
    reader.close()


def test_a_topic_is_made_by_keys_alone_then_grown_cut_and_deleted(
    browser: Browser, broker: Broker, name: MakeName
) -> None:
    orders = name("orders")
    browser.go("/topics/create")
    browser.find("main [name=name]").send_keys(orders, Keys.TAB, "2", Keys.ENTER)
    browser.await_text(f"Create topic {orders}?", "h1")
    assert browser.rows()[0] == ["Partitions", "2"]
    browser.find("main button").send_keys(Keys.ENTER)
    browser.await_text("is there", "h1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    # Kafka answers before it shows what has changed: here and below.
    eventually(lambda: orders in admin.list_topics(timeout=30).topics)
    browser.click("Look at it")
    browser.click("Add partitions…")
    browser.fill("count", "2")
    browser.click(LOOK)
    browser.await_text("never fewer", "[role=alert]")
    browser.fill("count", "3")
    browser.click(LOOK)
    browser.await_text("2 become 3")
    browser.click("Add partitions")
    browser.await_text("has 3 partitions", "h1")
    await_leaders(broker.bootstrap, orders, 3)

    _produced(broker, orders, 5)
    browser.go("/topics/trim", name=orders)
    browser.fill("value", "4")
    browser.click(LOOK)
    # The others are empty. A digit too many would delete all that a partition has.
    browser.await_text(f"{orders}-1 ends at 0, before offset 4", "[role=alert]")
    browser.choose("partition", "0")
    browser.click(LOOK)
    browser.await_text("Delete 4 offsets", "h1")
    assert browser.rows() == [[f"{orders}-0", "0", "4", "4"]]
    assert _ends(broker, orders) == (0, 5)
    browser.click("Delete the records")
    browser.await_text("begins later now", "h1")
    eventually(lambda: _ends(broker, orders) == (4, 5))

    browser.go("/topics/delete", name=orders)
    browser.fill("answer", orders)
    browser.click("Delete the topic")
    browser.await_text("is deleted", "h1")
    eventually(lambda: orders not in admin.list_topics(timeout=30).topics)


def test_a_setting_is_changed_refused_and_reset(
    browser: Browser, broker: Broker, topic: MakeTopic
) -> None:
    orders = topic("orders")

    def retention() -> str | None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resource = ConfigResource(ConfigResource.Type.TOPIC, orders)
        value = admin.describe_configs([resource])[resource].result(30)["retention.ms"].value
        return None if value is None else str(value)

    before = retention()
    address = {"type": "topic", "name": orders, "setting": "retention.ms"}
    browser.go("/configs/change", **address)
    browser.fill("value", "soon")
    browser.click(LOOK)
    browser.await_text("does not take that setting or that value", "[role=alert]")
    browser.fill("value", "77777")
    browser.click(LOOK)
    browser.await_text("Change retention.ms?", "h1")
    assert browser.rows()[0][2:] == [f"{before} (default)", "77777"] and retention() == before
    browser.click("Change it")
    browser.await_text("is changed", "h1")
    eventually(lambda: retention() == "77777")
    browser.click("Look at it")
    assert ["retention.ms", "77777"] in [row[:2] for row in browser.rows()]
    browser.go("/configs/change", **address)
    browser.choose("to", "reset")
    browser.click(LOOK)
    browser.await_text("Reset retention.ms?", "h1")
    browser.click("Reset it")
    browser.await_text("is reset", "h1")
    eventually(lambda: retention() == before)


def test_offsets_of_a_group_are_moved_as_the_preview_says_then_deleted_with_the_group(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, audit, group = topic("orders"), topic("audit"), name("shop")
    _produced(broker, orders, 5)
    _produced(broker, audit, 1)
    _committed(broker, group, orders, 5)
    _committed(broker, group, audit, 1)
    browser.go("/groups/reset", id=group)
    browser.choose("topic", orders)
    browser.choose("to", "shift")
    browser.fill("value", "-3")
    browser.click(LOOK)
    browser.await_text("3 offsets will be read again")
    assert browser.rows() == [[f"{orders}-0", "5", "2", "−3"]]
    browser.click("Move 1 offset")
    browser.await_text("are moved", "h1")
    browser.click("Look at it")
    browser.await_text("no consumer runs")
    rows = {row[0]: row[1] for row in browser.rows()}
    assert rows == {f"{orders}-0": "2", f"{audit}-0": "1"}

    browser.go("/groups/offsets", id=group, topic=audit)
    browser.click("Delete 1 offset")
    browser.await_text("has no offsets", "h1")
    browser.go("/groups/delete", id=group)
    assert f"Its offsets in 1 partition go: {orders}." in browser.text()
    browser.click("Delete the group")
    browser.await_text("is deleted", "h1")
    browser.go("/groups", filter=group)
    assert "No group" in browser.text()


def test_a_member_is_taken_out_and_a_group_with_members_keeps_its_offsets(
    browser: Browser, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group = topic("orders"), name("shop")
    _produced(broker, orders, 1)
    member = confluent_client.consumer(broker.bootstrap, group)
    member.subscribe([orders])
    assert member.consume(1, 30)
    member.commit(asynchronous=False)
    browser.go("/groups/reset", id=group, to="earliest", go=1)
    assert "has 1 member" in browser.text("[role=alert]")
    browser.go("/groups/delete", id=group)
    assert "Stop them first" in browser.text()
    browser.go("/groups/one", id=group)
    browser.click("Take out…")
    browser.await_text("Take this member out?", "h1")
    browser.click("Take it out")
    browser.await_text("The member is out", "h1")
    member.close()


def test_a_quota_is_set_changed_and_removed(browser: Browser, name: MakeName) -> None:
    user = name("ada")
    browser.go("/access/quota")
    browser.fill("user", user)
    browser.fill("value", "1000000")
    browser.click(LOOK)
    browser.await_text("Set producer_byte_rate?", "h1")
    assert browser.rows() == [[f"user {user}", "producer_byte_rate", "none", "1000000"]]
    browser.click("Set the quota")
    browser.await_text("is set", "h1")

    def shown() -> str:
        browser.go("/access", filter=user)
        return browser.text()

    eventually(lambda: user in shown())
    assert "1.0 MB/s" in browser.text()
    browser.click("Remove…")
    browser.await_text("Remove producer_byte_rate?", "h1")
    browser.click("Remove the quota")
    browser.await_text("any more", "h1")
    eventually(lambda: user not in shown())


def test_a_record_of_bytes_without_a_value_or_in_a_transaction_is_written(
    browser: Browser, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    browser.go("/topics/produce", name=orders)
    browser.choose("as", "hex")
    browser.fill("key", "zz")
    browser.find("main [name=no_value]").click()
    browser.click("Write the record")
    browser.await_text("no hexadecimal numbers", "[role=alert]")
    # What was typed is still there.
    assert browser.find("main [name=no_value]").is_selected()
    browser.fill("key", "00 ff")
    browser.click("Write the record")
    assert "000000  00 ff" in browser.await_text("binary, 2 B") and "null" in browser.text()
    browser.go("/topics/produce", name=orders)
    browser.find("main summary").click()
    browser.fill("value", "never")
    browser.fill("transactional_id", name("by-hand"))
    browser.choose("outcome", "abort")
    browser.click("Write the record")
    browser.await_text("aborted", "h1")


def test_what_a_user_may_not_do_is_said_and_users_and_rules_are_made_in_another_login(
    chromium: Browser, secured: Broker, tmp_path: Path, name: MakeName
) -> None:
    orders, user = name("orders"), name("eve")
    create_topic(secured.bootstrap, orders, 1, {})
    (tmp_path / "magnetar").mkdir()
    address = secured.address("SASL_PLAINTEXT")
    mechanisms = {"admins": "PLAIN", "people": "SCRAM-SHA-256"}
    profiles = [
        f'[{profile}]\nbootstrap.servers = "{address}"\n'
        f'security.protocol = "SASL_PLAINTEXT"\nsasl.mechanism = "{mechanism}"\n'
        for profile, mechanism in mechanisms.items()
    ]
    (tmp_path / "magnetar" / "profiles.toml").write_text("".join(profiles))
    with console(
        None,
        "--cluster",
        "admins",
        "--cluster",
        "people",
        environment={"XDG_CONFIG_HOME": str(tmp_path)},
    ) as base:
        browser = _at(chromium, base)
        browser.go("/c/admins/topics")
        _log_in(browser, "bob", "pw of bob")
        browser.await_text("Topics", "h1")
        _add_user(browser, user, "pw of eve")
        # The switch leads to the other cluster, which has a login of its own.
        browser.find(".clusters summary").click()
        browser.find(".clusters nav a:last-child").click()
        eventually(lambda: browser.address.startswith("/c/people/login"))

        def is_let_in() -> bool:
            if browser.address.startswith("/c/people/login"):
                _log_in(browser, user, "pw of eve")
            return "do not allow the user" in browser.text()

        # Kafka's nodes learn of users and rules a moment after the answer.
        eventually(is_let_in)
        browser.go("/c/people/topics/delete", name=orders)
        assert f"do not allow the user {user} to do that" in browser.text()

        _allow(browser, user, "DELETE", orders)

        def is_allowed() -> bool:
            browser.go("/c/people/topics/delete", name=orders)
            return "as the user" in browser.text()

        eventually(is_allowed)
        browser.fill("answer", orders)
        browser.click("Delete the topic")
        browser.await_text("is deleted", "h1")

        _delete_first(browser, user, f"Delete user {user}?", "Delete the user")
        _delete_first(browser, user, "Delete this rule?", "Delete the rule")


def _add_user(browser: Browser, user: str, password: str) -> None:
    browser.go("/c/admins/access/user")
    browser.fill("name", user)
    browser.click(LOOK)
    browser.await_text(f"Add user {user}?", "h1")
    for field in ("answer", "again"):
        browser.fill(field, password)
    browser.click("Add the user")
    browser.await_text("can log in by", "h1")


def _allow(browser: Browser, user: str, operation: str, topic: str) -> None:
    browser.go("/c/admins/access/rule")
    for field, text in (("principal", f"User:{user}"), ("name", topic)):
        browser.fill(field, text)
    browser.choose("operation", operation)
    browser.click(LOOK)
    browser.await_text("Add this rule?", "h1")
    assert browser.rows() == [[f"User:{user}", "may", operation.lower(), f"topic {topic}", "*"]]
    browser.click("Add the rule")
    browser.await_text("The rule is there", "h1")


def _delete_first(browser: Browser, user: str, question: str, button: str) -> None:
    """Delete the first thing that the page of access has about this user."""

    def is_asked() -> bool:
        """Whether this is what it has first: Kafka may still show what was deleted before."""
        browser.go("/c/admins/access", filter=user)
        browser.click("Delete…")
        return question in browser.text("h1")

    eventually(is_asked)
    browser.click(button)
    browser.await_text("is deleted", "h1")


def _at(chromium: Browser, base: str) -> Browser:
    chromium.size(*WIDE)
    chromium.visit(base)
    return chromium


def _log_in(browser: Browser, user: str, password: str) -> None:
    browser.fill("username", user)
    browser.fill("password", password)
    browser.find("main button").click()
