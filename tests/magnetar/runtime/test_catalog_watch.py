"""What other nodes change in the shared catalog, obeyed here: once, in order, whatever is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from magnetar.runtime import catalog_watch
from magnetar.security.acls import Acl, acl_of
from magnetar.security.principal import user
from magnetar.security.scram import ScramCredential
from magnetar.security.tokens import Token
from magnetar.storage import catalog_changes
from magnetar.storage.acls import STANDARD_AUTHORIZER
from magnetar.storage.broker_configs import EVERY_BROKER
from magnetar.storage.catalog import Catalog, NameTaken
from magnetar.storage.catalog_rows import QUOTAS_NAMED_MAX, Change, TopicRow
from magnetar.storage.client_quotas import USER, Entity
from magnetar.storage.client_quotas import Change as QuotaChange
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.scram_credentials import ScramCredentials
from magnetar.storage.topic_configs import TopicConfigs
from tests.magnetar.nodes_in_one import NodesInOne, two_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Kafka's code of a group, for configs.
GROUP = 32


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[NodesInOne]:
    async with two_of(NodesInOne(tmp_path / "data")) as started:
        yield started


def row(name: str, leaders: tuple[int, ...] = (0, 1)) -> TopicRow:
    placed = tuple(Elsewhere(node_id, 0) for node_id in leaders)
    return TopicRow(uuid4(), name, len(leaders), 1, False, {}, placed)


async def test_a_change_that_no_message_told_of_is_found(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_watch, "LOOK_AGAIN_S", 0.01)
    node = nodes.nodes[0]
    assert node.watch is not None
    node.watch.stop()
    node.watch.start(nodes.failures.append)
    nodes.nodes[1].catalog.add_topic(row("b"))
    async with asyncio.timeout(10):
        while node.topics.by_name("b") is None:
            await asyncio.sleep(0.001)
    assert len(node.topics.ensure("b").local) == 1


async def test_everything_is_read_again_where_too_much_was_missed(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, catalog = nodes.nodes[0], nodes.nodes[1].catalog
    monkeypatch.setattr(catalog_changes, "_CHANGES_KEPT", 2)
    gone = node.topics.ensure("a").id
    catalog.remove_topics([gone])
    for name in ("b", "c"):
        catalog.add_topic(row(name))
    catalog.set_scram_credentials({"ada": {"SCRAM-SHA-256": (b"s", 4096, b"k", b"k")}})
    catalog.set_client_quotas({'[["client-id", "c"]]': {"producer_byte_rate": 5.0}})
    assert catalog.changes.since(node.watch.version if node.watch else 0)[1] is None
    await node.nodes.see_changes()
    assert node.topics.by_id(gone) is None
    assert all(node.topics.by_name(name) is not None for name in ("b", "c"))
    assert [*node.authentication.credentials.users()] == ["ada"]
    assert node.client_quotas.of((("client-id", "c"),)) == {"producer_byte_rate": 5.0}


async def test_everything_is_read_again_where_changes_were_taken_back(nodes: NodesInOne) -> None:
    """PostgreSQL may show a change that its standby lacks, and then fail over. A number that this
    node has read stands for another change after that."""
    node, catalog = nodes.nodes[0], nodes.nodes[1].catalog
    lost, kept = row("lost"), row("kept")
    catalog.add_topic(kept)
    catalog.add_topic(lost)
    await node.nodes.see_changes()
    assert node.topics.by_id(lost.id) is not None
    with catalog.database.transaction("fail over") as database:
        database.execute("DELETE FROM topics WHERE id = ?", (lost.id.bytes,))
        database.execute("UPDATE cluster SET change_count = change_count - 1")
    await node.nodes.see_changes()
    assert node.topics.by_id(lost.id) is None
    assert node.topics.by_id(kept.id) is not None


async def test_a_topic_that_grew_and_was_changed_twice_is_as_the_catalog_has_it(
    nodes: NodesInOne,
) -> None:
    node, catalog = nodes.nodes[0], nodes.nodes[1].catalog
    topic = node.topics.ensure("a")
    catalog.set_topic_configs(topic.id, {"retention.ms": "5"})
    assert catalog.grow_topic(topic.id, 4, 6, (0, 1)) is not None
    catalog.set_topic_configs(topic.id, {"retention.ms": "6"})
    for _ in range(2):
        await node.nodes.see_changes()
        assert [node.nodes.leader_of("a", index) for index in (4, 5, 6)] == [0, 1, None]
        assert {log.config.retention_ms for log in topic.local} == {6}
        assert len(topic.local) == 3


async def test_a_topic_that_was_deleted_and_made_anew_is_found_in_whatever_order_that_is_read(
    nodes: NodesInOne,
) -> None:
    node, catalog = nodes.nodes[0], nodes.nodes[1].catalog
    former = node.topics.ensure("a")
    deleted = []
    node.topics.deletion.on_deleted.append(lambda topic: deleted.append(node.topics.by_name("a")))
    catalog.remove_topics([former.id])
    made_anew = row("a")
    catalog.add_topic(made_anew)
    # The rows of changes have no order among themselves.
    for topic_id in (made_anew.id, former.id):
        await node.topics.refresh([topic_id])
    assert node.topics.by_id(former.id) is None
    found = node.topics.by_name("a")
    assert found is not None and found.id == made_anew.id
    assert found is node.topics.by_id(made_anew.id)
    # What is forgotten with the former topic is nothing of the new one.
    assert deleted == [None]


async def test_many_rules_tokens_and_configs_are_read_together_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "delegation.token.secret.key": "secret",
    }
    async with two_of(NodesInOne(tmp_path / "data", settings)) as nodes:
        node, other = nodes.nodes.values()
        assert node.acls is not None and other.acls is not None
        assert node.tokens is not None and other.tokens is not None
        # They look when they are told to, and read all at once.
        for each in (node, other):
            assert each.watch is not None
            each.watch.stop()
        rules: list[Acl] = [acl_of(2, f"t-{n}", 3, "User:ada", "*", 3, 3) for n in range(300)]
        for first in range(0, 300, 150):
            node.acls.add(rules[first : first + 150])
        node.acls.remove(rules[:50])
        for number in range(150):
            token = Token(str(number), user("ada"), user("ada"), (), 1, 2**60, 2**60)
            node.tokens.put(token)
            node.stored_configs.replace(GROUP, str(number), {"x": "1"})
        steps: list[int] = []
        for name in ("acls", "resource_configs", "delegation_tokens"):
            read = getattr(Catalog, name)

            def counted(self: Catalog, *keys: object, read: Any = read) -> Any:
                assert keys, "none named would be all"
                asyncio.get_running_loop().call_soon(steps.append, len(keys))
                return read(self, *keys)

            monkeypatch.setattr(Catalog, name, counted)
        await other.nodes.see_changes()
        assert {*other.acls.all()} == {*rules[50:]}
        assert {token.id for token in other.tokens.all()} == {str(n) for n in range(150)}
        assert other.stored_configs.names(GROUP) == node.stored_configs.names(GROUP)
        # 64 in each, and no step has two.
        assert sorted(steps) == sorted([64, 64, 64, 64, 44, *[64, 64, 22] * 2])


async def test_quotas_and_configs_are_read_of_what_has_changed_alone(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = nodes.nodes.values()
    ada, bob = (((USER, name),) for name in ("ada", "bob"))
    node.client_quotas.replace({ada: {"producer_byte_rate": 1.0}})
    for name in ("a", "b"):
        node.stored_configs.replace(GROUP, name, {"x": "1"})
    await other.nodes.see_changes()
    read: list[object] = []
    quotas, configs = Catalog.client_quotas, Catalog.resource_configs

    def quotas_read(self: Catalog, *entities: str) -> dict[str, dict[str, float]]:
        read.extend(entities or [None])
        return quotas(self, *entities)

    def configs_read(
        self: Catalog, *only: tuple[int, str]
    ) -> dict[tuple[int, str], dict[str, str]]:
        read.extend(only or [None])
        return configs(self, *only)

    monkeypatch.setattr(Catalog, "client_quotas", quotas_read)
    monkeypatch.setattr(Catalog, "resource_configs", configs_read)
    # What topics inherit is the broker's: a group's configs end the node if it looks at topics.
    monkeypatch.delattr(TopicConfigs, "inherit")
    node.client_quotas.replace({ada: {}, bob: {"producer_byte_rate": 2.0}})
    node.stored_configs.replace(GROUP, "a", {})
    node.stored_configs.replace(GROUP, "c", {"y:z": "2"})
    await other.nodes.see_changes()
    assert other.client_quotas.all() == [(bob, {"producer_byte_rate": 2.0})]
    assert other.stored_configs.names(GROUP) == ["b", "c"]
    assert other.stored_configs.texts(GROUP, "c") == {"y:z": "2"}
    assert len(read) == 4 and None not in read


async def test_many_users_are_read_together_and_others_have_their_turn_in_between(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = nodes.nodes.values()
    assert other.watch is not None
    other.watch.stop()
    stored = (b"salt", 4096, b"k", b"k")
    names = [f"user-{number}" for number in range(200)]
    node.catalog.set_scram_credentials({name: {"SCRAM-SHA-256": stored} for name in names})
    node.catalog.set_scram_credentials({names[0]: {"SCRAM-SHA-256": None}})
    steps: list[int] = []
    reload = ScramCredentials.reload

    def counted(self: ScramCredentials, *users: str) -> None:
        asyncio.get_running_loop().call_soon(steps.append, len(users))
        reload(self, *users)

    def read(self: Catalog, *users: str) -> list[tuple[str, str, bytes, int, bytes, bytes]]:
        assert users, "none named would be all"
        return credentials(self, *users)

    credentials = Catalog.scram_credentials
    monkeypatch.setattr(Catalog, "scram_credentials", read)
    monkeypatch.setattr(ScramCredentials, "reload", counted)
    await other.nodes.see_changes()
    assert {*other.authentication.credentials.users()} == {*names[1:]}
    assert len(steps) == 4 and sum(steps) == 200


async def test_quotas_of_several_changes_are_looked_at_once(nodes: NodesInOne) -> None:
    node, other = nodes.nodes.values()
    one, two, three = (((USER, name),) for name in ("a", "b", "c"))
    node.client_quotas.replace({one: {"producer_byte_rate": 1.0}})
    await other.nodes.see_changes()
    # Each look takes as long as there are quotas, for all nodes.
    looks: list[int] = []
    other.client_quotas.on_change = lambda: looks.append(len(other.client_quotas.all()))
    node.client_quotas.replace({one: {}, two: {"producer_byte_rate": 2.0}})
    node.client_quotas.replace({three: {"producer_byte_rate": 3.0}})
    await other.nodes.see_changes()
    assert looks == [2]
    assert dict(other.client_quotas.all()) == {
        two: {"producer_byte_rate": 2.0},
        three: {"producer_byte_rate": 3.0},
    }


async def test_quotas_of_many_entities_are_read_together(nodes: NodesInOne) -> None:
    node, other = nodes.nodes.values()
    many: dict[Entity, dict[str, float]] = {
        ((USER, str(number)),): {"producer_byte_rate": 1.0}
        for number in range(QUOTAS_NAMED_MAX + 1)
    }
    node.client_quotas.replace(many)
    await other.nodes.see_changes()
    assert dict(other.client_quotas.all()) == many


async def test_a_node_that_misses_changes_is_told_of_once(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = nodes.nodes[0]
    peers = node.nodes._peers
    assert peers is not None

    away = iter(([7], [7], [7, 8], [8], [], [8]))

    async def missing(version: int) -> list[int]:
        return next(away)

    monkeypatch.setattr(peers, "tell_catalog_changed", missing)
    for _ in range(6):
        await node.nodes.tell_changes()
    told = [line for line in capsys.readouterr().err.splitlines() if "not confirmed" in line]
    assert [json.loads(line)["node_ids"] for line in told] == [[7], [8], [8]]


async def test_changes_at_the_same_moment_of_different_values_of_one_thing_all_last(
    nodes: NodesInOne,
) -> None:
    first, second = nodes.nodes.values()
    # Each node changes before it has read what the other one has changed.
    for node, name in ((first, "retention.ms"), (second, "segment.ms")):
        topic = node.topics.ensure("a")
        node.topics.configs.replace(topic, {**topic.configs, name: "50"})
    for node, name in ((first, "log.retention.ms"), (second, "log.roll.ms")):
        configs = node.broker_configs
        configs.replace(EVERY_BROKER, {**configs.texts(EVERY_BROKER), name: "50"})
    for node, name in ((first, "interval.ms"), (second, "metrics")):
        stored = node.stored_configs
        stored.replace(16, "s", {**stored.texts(16, "s"), name: "50"})
    user: Entity = (("user", "ada"),)
    for node, key in ((first, "producer_byte_rate"), (second, "consumer_byte_rate")):
        quotas = node.client_quotas.check(user, [QuotaChange(key, 5.0)])
        node.client_quotas.replace({user: quotas})
    for node, mechanism in ((first, "SCRAM-SHA-256"), (second, "SCRAM-SHA-512")):
        users = node.authentication.credentials
        kept = ScramCredential(b"salt", 4096, b"stored", b"server")
        users.replace({"ada": {**users.of("ada"), mechanism: kept}})
    for node in (first, second):
        await node.nodes.see_changes()
        assert node.topics.ensure("a").configs == {"retention.ms": "50", "segment.ms": "50"}
        shared = {"log.retention.ms": "50", "log.roll.ms": "50"}
        assert node.broker_configs.texts(EVERY_BROKER) == shared
        subscribed = {"interval.ms": "50", "metrics": "50"}
        assert node.stored_configs.texts(16, "s") == subscribed
        quotas = {"producer_byte_rate": 5.0, "consumer_byte_rate": 5.0}
        assert node.client_quotas.of(user) == quotas
        assert set(node.authentication.credentials.of("ada")) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}


async def test_settings_for_a_topic_that_another_node_has_just_deleted_are_refused(
    nodes: NodesInOne,
) -> None:
    node, other = nodes.nodes.values()
    topic = node.topics.ensure("a")
    other.catalog.remove_topics([topic.id])
    with pytest.raises(KafkaError) as refused:
        node.topics.configs.replace(topic, {"retention.ms": "5"})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.configs == {}


def test_names_and_counts_are_decided_by_the_catalog(tmp_path: Path) -> None:
    first = Catalog(tmp_path, is_shared=True)
    second = Catalog(tmp_path, is_shared=True)
    first.nodes.place([0, 1], {})
    topic = row("a")
    first.add_topic(topic)
    with pytest.raises(NameTaken):
        second.add_topic(row("a"))
    grown = second.grow_topic(topic.id, 2, 3, (1,))
    assert grown is not None and [each.node_id for each in grown.leaders] == [0, 1, 1]
    assert first.grow_topic(topic.id, 2, 4, (0, 0)) is None
    version, changes, epochs = first.changes.since(0)
    assert changes == [Change("topic", topic.id.hex)]
    assert second.changes.since(version) == (version, [], epochs)
    assert second.nodes.start(1) == 0
    assert first.nodes.start(0) == 1
    assert first.nodes.epochs() == {0: 1, 1: 0}
    found = second.topic(topic.id)
    assert found is not None and found.leaders[0] == Elsewhere(0, 1)
    first.close()
    second.close()


def test_the_catalog_of_one_node_keeps_no_list_of_changes(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.add_topic(TopicRow(uuid4(), "a", 1, 1, False, {}))
    assert catalog.changes.since(0)[1] == []
    catalog.close()
