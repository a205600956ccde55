"""The catalog of several nodes keeps the same promises in SQLite and in PostgreSQL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from threading import Event
from uuid import uuid4

import pytest

from magnetar.storage import catalog_changes, sqlite_database
from magnetar.storage.catalog import Catalog, NameTaken
from magnetar.storage.catalog_nodes import IdInUse
from magnetar.storage.catalog_rows import Change, NodeRow, Presence, TopicRow
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.postgres_database import PostgresDatabase

Open = Callable[[], Catalog]

PRESENCE = Presence("host:/data", {"PLAINTEXT": ("a.example", 9092)}, "r1", "1.0")


@pytest.fixture(params=["sqlite", "postgresql"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same catalog, each time as another node does."""
    with ExitStack() as stack:
        if request.param == "sqlite":

            def opened() -> Catalog:
                catalog = Catalog(tmp_path, is_shared=True)
                stack.callback(catalog.close)
                return catalog
        else:
            url = request.getfixturevalue("postgres_url")

            def opened() -> Catalog:
                catalog = Catalog(None, is_shared=True, database=PostgresDatabase(url))
                stack.callback(catalog.close)
                return catalog

        yield opened


def row(name: str, *leaders: int, **configs: str) -> TopicRow:
    placed = tuple(Elsewhere(node_id, 0) for node_id in leaders)
    return TopicRow(uuid4(), name, len(leaders) or 3, 1, False, configs, placed)


def test_what_one_node_stores_another_reads(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    assert first.cluster_id() == second.cluster_id()
    assert first.secret() == second.secret()
    assert len(first.secret()) == 32
    topics = [row("a", **{"retention.ms": "5"}), row("b")]
    for topic in reversed(topics):
        first.add_topic(topic)
    assert second.topics() == topics
    first.set_topic_configs(topics[0].id, {"retention.bytes": "7", "retention.ms": None})
    assert second.topic(topics[0].id) == topics[0]._replace(configs={"retention.bytes": "7"})
    first.set_resource_configs(4, "", {"log.retention.ms": "9"})
    assert second.resource_configs() == {(4, ""): {"log.retention.ms": "9"}}
    first.set_client_quotas({"x": {"producer_byte_rate": 5.5}})
    assert second.client_quotas() == {"x": {"producer_byte_rate": 5.5}}


def test_topics_are_stored_together_but_for_those_whose_names_are_taken(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    for node_id in (1, 2):
        first.nodes.start(node_id)
    taken = row("b", 1)
    second.add_topic(taken)
    version = first.changes.count()
    placed = row("a", 1, 2, 1, **{"retention.ms": "5", "cleanup.policy": "compact"})
    assigned = row("c", 2)._replace(assigned={0: (2, 1)})
    assert first.add_topics([placed, row("b", 2), assigned]) == {"b"}
    stored = second.topics()
    assert [each.id for each in stored] == [placed.id, taken.id, assigned.id]
    assert [each.node_id for each in stored[0].leaders] == [1, 2, 1]
    assert stored[0].configs == placed.configs and stored[2].assigned == assigned.assigned
    changes = second.changes.since(version)[1]
    assert changes is not None
    assert {Change("topic", each.id.hex) for each in (placed, assigned)} <= {*changes}
    # What stores none is no change.
    assert first.add_topics([row("a", 1), row("b", 1)]) == {"a", "b"}
    assert first.changes.count() == version + 1


def test_things_are_read_by_their_keys(open_catalog: Open) -> None:
    catalog = open_catalog()
    acls = [(2, f"t-{number}", 3, "User:ada", "*", 3, 3) for number in range(5)]
    catalog.add_acls(acls)
    assert sorted(catalog.acls(*acls[1:3], (2, "none", 3, "User:ada", "*", 3, 3))) == acls[1:3]
    assert sorted(catalog.acls()) == acls
    for name in ("a", "b", "c"):
        catalog.set_resource_configs(32, name, {"x": name, "y": "1"})
    read = catalog.resource_configs((32, "a"), (32, "c"), (16, "b"))
    assert read == {(32, name): {"x": name, "y": "1"} for name in ("a", "c")}
    tokens = [(each, "User", "a", "User", "a", "[]", 1, 100, 1_000) for each in ("1", "2", "3")]
    for token in tokens:
        catalog.add_delegation_token(token)
    assert catalog.delegation_tokens("3", "1", "4") == [tokens[0], tokens[2]]
    assert catalog.delegation_tokens() == tokens
    catalog.set_client_quotas({each: {"x": 1.0} for each in ("a", "b", "c")})
    assert {*catalog.client_quotas("a", "c", "d")} == {"a", "c"}


def test_tokens_that_another_node_has_removed_are_no_change(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    for each, expires_ms in (("old", 100), ("renewed", 300)):
        first.add_delegation_token((each, "U", "a", "U", "a", "[]", 1, expires_ms, 1_000))
    version = first.changes.count()
    assert first.remove_expired_tokens(["old", "renewed"], 200) == ["old"]
    assert second.changes.since(version)[1] == [Change("tokens", "old")]
    assert second.remove_expired_tokens(["old", "renewed"], 200) == []
    assert second.changes.count() == version + 1


def test_a_node_that_has_missed_changes_of_very_many_things_reads_all(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_changes, "_NAMES_MAX", 5)
    catalog = open_catalog()
    version = catalog.changes.count()
    catalog.remove_delegation_tokens([str(number) for number in range(5)])
    assert len(catalog.changes.since(version)[1] or ()) == 5
    catalog.remove_delegation_tokens(["one more"])
    assert catalog.changes.since(version)[1] is None


def test_a_node_writes_what_it_changes_and_nothing_of_a_topic_that_is_gone(
    open_catalog: Open,
) -> None:
    first, second = open_catalog(), open_catalog()
    topic = row("a")
    first.add_topic(topic)
    credential = (b"salt", 4096, b"k", b"k")
    for node, name in ((first, "x"), (second, "y")):
        assert node.set_topic_configs(topic.id, {name: "1"})
        node.set_resource_configs(4, "", {name: "1"})
        node.set_client_quotas({"ada": {name: 1.0}})
        node.set_scram_credentials({"ada": {name: credential}})
    both = {"x": "1", "y": "1"}
    assert first.topic(topic.id) == topic._replace(configs=both)
    assert first.resource_configs() == {(4, ""): both}
    assert first.client_quotas() == {"ada": {"x": 1.0, "y": 1.0}}
    assert [each[1] for each in first.scram_credentials("ada")] == ["x", "y"]
    second.set_scram_credentials({"ada": {"x": None}})
    assert [each[1] for each in first.scram_credentials("ada")] == ["y"]
    first.remove_topics([topic.id])
    assert not second.set_topic_configs(topic.id, {"x": "2"})
    assert second.topic(topic.id) is None


def test_users_acls_and_tokens_are_shared(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    for user in ("ada", "bob"):
        kept = {"SCRAM-SHA-256": (b"\0salt", 4096, b"k", b"\xff")}
        first.set_scram_credentials({user: kept})
    assert second.scram_credentials("ada") == [
        ("ada", "SCRAM-SHA-256", b"\0salt", 4096, b"k", b"\xff")
    ]
    assert second.scram_credentials("ada", "eve") == second.scram_credentials("ada")
    assert len(second.scram_credentials("ada", "bob")) == len(second.scram_credentials()) == 2
    acl = (2, "a", 3, "User:ada", "*", 3, 3)
    for _ in range(2):
        first.add_acls([acl])
    assert second.acls() == [acl]
    second.remove_acls([acl])
    assert first.acls() == []
    token = ("id", "User", "ada", "User", "ada", "[]", 2**41, 2**42, 2**43)
    first.add_delegation_token(token)
    assert second.set_token_expiry("id", 2**41)
    assert second.delegation_tokens() == [(*token[:6], 2**41, 2**41, 2**43)]
    second.remove_delegation_tokens(["id"])
    assert not first.set_token_expiry("id", 2**42)
    assert first.delegation_tokens() == []


def test_a_rule_with_long_names_is_stored_however_json_writes_them(open_catalog: Open) -> None:
    """JSON makes six characters of two bytes, and PostgreSQL's indexes take 2,700 bytes."""
    catalog, random = open_catalog(), Random(1)
    name = "".join(chr(random.randrange(0x400, 0x500)) for _ in range(1_300))
    acl = (3, name, 3, "User:ada", "*", 3, 3)
    catalog.add_acls([acl])
    assert catalog.acls() == [acl]
    assert catalog.changes.since(0)[1] == [Change("acls", "")]
    catalog.remove_acls([acl])
    assert catalog.acls() == []


def test_names_counts_and_numbers_are_decided_by_the_catalog(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    assert [second.nodes.start(1, PRESENCE), first.nodes.start(0, PRESENCE)] == [0, 1]
    topic = row("a", 0, 1)
    first.add_topic(topic)
    with pytest.raises(NameTaken):
        second.add_topic(row("a"))
    grown = second.grow_topic(topic.id, 2, 3, (1,))
    assert grown is not None and [each.node_id for each in grown.leaders] == [0, 1, 1]
    assert first.grow_topic(topic.id, 2, 4, (0, 0)) is None
    assert [one.allocate_producer_ids(1000) for one in (first, second)] == [0, 1000]
    second.reserve_producer_ids_below(5000)
    second.reserve_producer_ids_below(10)
    assert first.allocate_producer_ids(10) == 5000
    version, changes, epochs = first.changes.since(0)
    assert changes is not None
    assert Change("topic", topic.id.hex) in changes and Change("node", "1") in changes
    assert second.changes.since(version) == (version, [], epochs)


def test_a_start_fences_the_one_before_and_leads_with_its_number(open_catalog: Open) -> None:
    catalog = open_catalog()
    first = catalog.nodes.start(7, PRESENCE)
    topic = row("a", 7)
    catalog.add_topic(topic)
    second = catalog.nodes.start(7, PRESENCE)
    assert second > first
    assert [row.incarnation for row in catalog.nodes.members()] == [second]
    found = open_catalog().topic(topic.id)
    assert found is not None and found.leaders == (Elsewhere(7, second),)


def test_a_node_is_live_until_its_lease_ends(open_catalog: Open) -> None:
    catalog, other = open_catalog(), open_catalog()
    incarnation = catalog.nodes.start(3, PRESENCE)
    (found,) = other.nodes.members()
    assert found == NodeRow(3, incarnation, True, PRESENCE)
    # What an earlier start says of its end is no longer true.
    other.nodes.end_lease(3, incarnation - 1)
    assert catalog.nodes.members()[0].is_live
    catalog.nodes.end_lease(3, incarnation)
    assert not other.nodes.members()[0].is_live


def test_a_lease_of_before_the_clock_was_set_back_is_no_lease(open_catalog: Open) -> None:
    """A node that died then would seem to live for as long as the clock was set back."""
    catalog, other = open_catalog(), open_catalog()
    dead, lives = catalog.nodes.start(3, PRESENCE), catalog.nodes.start(4, PRESENCE)
    catalog.add_topic(row("a", 3, 4))
    with catalog.database.transaction("set the clock back") as database:
        database.execute(
            "UPDATE nodes SET lease_until = (SELECT lease_end() + (lease_end() - lease_now()))"
            " WHERE node_id = 3"
        )
    assert [row.is_live for row in other.nodes.members()] == [False, True]
    assert not other.nodes.take_over(4, lives)
    assert other.nodes.take_over(3, dead)
    with pytest.raises(IdInUse):
        other.nodes.claim("another place", [4])
    other.nodes.claim("another place", [3])


def test_a_deleted_topic_is_gone_with_all_that_belonged_to_it(open_catalog: Open) -> None:
    first, second = open_catalog(), open_catalog()
    first.nodes.start(0)
    topic = row("a", 0, 0, **{"retention.ms": "5"})
    first.add_topic(topic)
    second.remove_topics([topic.id])
    assert first.topics() == []
    assert first.deleted_topics() == {topic.id}
    first.add_topic(row("a"))
    first.forget_deleted_topics([topic.id])
    assert second.deleted_topics() == set()


def test_a_node_that_stands_still_in_a_change_delays_the_others_once(tmp_path: Path) -> None:
    with (
        closing(Catalog(tmp_path, is_shared=True)) as still,
        closing(Catalog(tmp_path, is_shared=True)) as other,
    ):
        with still.database.transaction("stand still"):
            began_s = time.monotonic()
            for _ in range(20):
                with pytest.raises(CatalogUnavailable, match="in the middle of a change"):
                    other.set_resource_configs(4, "", {"log.retention.ms": "9"})
            # One wait for all: the event loop stands still meanwhile.
            assert 4 < time.monotonic() - began_s < 9
            assert other.resource_configs() == {}
        other.set_resource_configs(4, "", {"log.retention.ms": "9"})
        assert still.resource_configs() == {(4, ""): {"log.retention.ms": "9"}}


def test_a_catalog_that_another_process_has_locked_is_unavailable_to_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "_LOCK_S", 0.05)
    with closing(sqlite3.connect(tmp_path / sqlite_database.FILE_NAME)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnavailable, match="cannot open: database is locked"):
            Catalog(tmp_path)
        other.rollback()
    Catalog(tmp_path).close()


def test_a_node_that_was_locked_out_waits_for_a_short_change_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "_LOCK_S", 0.05)
    with (
        closing(Catalog(tmp_path, is_shared=True)) as still,
        closing(Catalog(tmp_path, is_shared=True)) as other,
    ):
        with still.database.transaction("stand still"), pytest.raises(CatalogUnavailable):
            other.set_resource_configs(4, "", {"log.retention.ms": "8"})
        is_begun = Event()

        def change() -> None:
            with still.database.transaction("work"):
                is_begun.set()
                time.sleep(0.01)  # The work, during which the other one waits.

        with ThreadPoolExecutor(1) as threads:
            changing = threads.submit(change)
            is_begun.wait()
            other.set_resource_configs(4, "", {"log.retention.ms": "9"})
            changing.result()
        assert other.resource_configs() == {(4, ""): {"log.retention.ms": "9"}}


def test_every_kind_of_busy_is_told_as_such(tmp_path: Path) -> None:
    with (
        closing(Catalog(tmp_path, is_shared=True)) as first,
        closing(Catalog(tmp_path, is_shared=True)) as second,
    ):
        # The code is SQLITE_BUSY_SNAPSHOT here: what is to be changed has changed since.
        with (
            pytest.raises(CatalogUnavailable, match="in the middle of a change"),
            first.database.snapshot("look") as database,
        ):
            database.execute("SELECT * FROM cluster").fetchall()
            second.set_resource_configs(4, "", {"log.retention.ms": "9"})
            database.execute("DELETE FROM resource_configs")
        assert first.resource_configs() == {(4, ""): {"log.retention.ms": "9"}}
