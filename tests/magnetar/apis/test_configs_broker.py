"""Configs of the broker, its loggers and client metrics: changed while it runs, and obeyed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar import logging
from magnetar.broker import Broker
from magnetar.config.changes import Operation
from magnetar.storage import broker_configs, stored_configs
from magnetar.storage.catalog import Catalog
from wire.error_code import ErrorCode
from wire.messages import alter_configs
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

StartBroker = Callable[..., Awaitable[Broker]]
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = Operation
OWN, EVERY = "1", ""
DYNAMIC, SHARED, STATIC, DEFAULT = 2, 3, 4, 5


async def alter(
    client: Any,
    resource_type: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> int:
    resource = AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterableConfig(name=each, config_operation=operation, value=value)
            for each, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = (await client.ask(request, 1, IncrementalAlterConfigsResponse)).responses
    return int(response.error_code)


async def replace(client: Any, resource_type: int, name: str, **configs: str) -> int:
    resource = alter_configs.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            alter_configs.AlterableConfig(name=each.replace("_", "."), value=value)
            for each, value in configs.items()
        ],
    )
    request = AlterConfigsRequest(resources=[resource])
    (response,) = (await client.ask(request, 2, AlterConfigsResponse)).responses
    return int(response.error_code)


async def describe(
    client: Any, resource_type: int, name: str
) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await client.ask(request, 4, DescribeConfigsResponse)).results
    assert result.error_code == 0
    assert result.error_message == ""
    return {config.name: config for config in result.configs}


def values(entry: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


async def test_one_brokers_config_wins_over_every_brokers(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a", 2)
    name = "message.max.bytes"
    assert await alter(client, BROKER, EVERY, (name, SET, "2000")) == 0
    assert [log.config.max_message_bytes for log in topic.local] == [2000, 2000]
    assert await alter(client, BROKER, OWN, (name, SET, "3000")) == 0
    assert [log.config.max_message_bytes for log in topic.local] == [3000, 3000]
    inherited = [(name, "3000", DYNAMIC), (name, "2000", SHARED), (name, "1048588", DEFAULT)]
    shown = (await describe(client, BROKER, OWN))[name]
    assert (shown.value, shown.config_source, shown.read_only) == ("3000", DYNAMIC, False)
    assert values(shown) == inherited
    of_topic = (await describe(client, TOPIC, "a"))["max.message.bytes"]
    assert (of_topic.value, of_topic.config_source) == ("3000", DYNAMIC)
    assert values(of_topic) == inherited
    (shared,) = (await describe(client, BROKER, EVERY)).values()
    assert (shared.name, shared.value, shared.config_source) == (name, "2000", SHARED)
    assert await alter(client, BROKER, OWN, (name, DELETE, None)) == 0
    assert topic.local[0].config.max_message_bytes == 2000
    assert await replace(client, BROKER, EVERY) == 0
    assert topic.local[0].config.max_message_bytes == 1048588
    assert (await describe(client, BROKER, OWN))[name].config_source == DEFAULT


async def test_a_topics_own_config_wins_over_the_brokers(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a", configs={"retention.ms": "7"})
    assert await alter(client, BROKER, EVERY, ("log.retention.ms", SET, "5")) == 0
    assert topic.local[0].config.retention_ms == 7
    assert broker.topics.create("b").local[0].config.retention_ms == 5
    shown = (await describe(client, TOPIC, "a"))["retention.ms"]
    assert values(shown) == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "5", SHARED),
        ("log.retention.hours", "168", DEFAULT),
    ]


async def test_what_was_given_at_the_start_is_what_a_deletion_goes_back_to(
    start_broker: StartBroker, connect: Any
) -> None:
    broker = await start_broker({"message.max.bytes": "500"})
    client = await connect(broker)
    name = "message.max.bytes"
    assert (await describe(client, BROKER, OWN))[name].config_source == STATIC
    assert await replace(client, BROKER, OWN, message_max_bytes="600") == 0
    shown = (await describe(client, BROKER, OWN))[name]
    assert values(shown) == [
        (name, "600", DYNAMIC),
        (name, "500", STATIC),
        (name, "1048588", DEFAULT),
    ]
    assert await alter(client, BROKER, OWN, (name, DELETE, None)) == 0
    assert broker.config.message_max_bytes == 500


async def test_changes_outlive_the_broker(start_broker: StartBroker, connect: Any) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    client = await connect(broker)
    assert await alter(client, BROKER, EVERY, ("log.retention.ms", SET, "5")) == 0
    assert await alter(client, BROKER, OWN, ("max.connections", SET, "77")) == 0
    assert await alter(client, METRICS, "m", ("interval.ms", SET, "1000")) == 0
    await broker.stop()
    again = await start_broker(settings)
    assert again.config.max_connections == 77
    assert again.topics.create("a").settings.retention_ms == 5
    assert again.stored_configs.texts(METRICS, "m") == {"interval.ms": "1000"}


async def test_a_stored_config_that_nobody_understands_is_left_out(
    start_broker: StartBroker, tmp_path: Any
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    await broker.stop()
    catalog = Catalog(tmp_path / "data")
    catalog.set_resource_configs(
        BROKER, OWN, {"message.max.bytes": "many", "of.the.future": "1", "max.connections": "7"}
    )
    catalog.close()
    again = await start_broker(settings)
    assert (again.config.message_max_bytes, again.config.max_connections) == (1048588, 7)


async def test_a_broker_has_so_many_configs_of_its_own_and_no_more(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_configs, "CONFIGS_MAX", 2)
    codes = [
        await alter(client, BROKER, OWN, (f"listener.name.x{number}.max.connections", SET, "9"))
        for number in range(3)
    ]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert len(broker.config.own_texts) == 2


@pytest.mark.parametrize("resource_type", [BROKER, LOGGER])
async def test_a_broker_of_many_digits_is_another_one(client: Any, resource_type: int) -> None:
    code = await alter(client, resource_type, "1" * 32_000, ("message.max.bytes", SET, "7"))
    assert code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", [OWN, EVERY])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("num.partitions", SET, "7")], ErrorCode.INVALID_REQUEST),
        ([("durability", SET, "memory")], ErrorCode.INVALID_REQUEST),
        ([("listeners", SET, "PLAINTEXT://:1")], ErrorCode.INVALID_REQUEST),
        ([("no.such.thing", SET, "7")], ErrorCode.INVALID_REQUEST),
        ([("ssl.keystore.location", SET, "/x")], ErrorCode.INVALID_REQUEST),
        ([("message.max.bytes", SET, "x")], ErrorCode.INVALID_REQUEST),
        ([("message.max.bytes", SET, "-1")], ErrorCode.INVALID_REQUEST),
        ([("log.retention.ms", SET, "0")], ErrorCode.INVALID_REQUEST),
        ([("log.cleanup.policy", APPEND, "burn")], ErrorCode.INVALID_REQUEST),
        ([("message.max.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("num.io.threads", SET, "many")], ErrorCode.INVALID_REQUEST),
        ([("num.io.threads", SET, "0")], ErrorCode.INVALID_REQUEST),
        ([("log.cleaner.min.cleanable.ratio", SET, "NaN")], ErrorCode.INVALID_REQUEST),
        # A refusal that quotes the value, twice even, must still fit into a response.
        ([("max.connections.per.ip.overrides", SET, "x" * 32_000)], ErrorCode.INVALID_REQUEST),
        (
            [("message.max.bytes", SET, "7"), ("num.partitions", SET, "7")],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_refused_changes_change_nothing(
    broker: Broker,
    client: Any,
    name: str,
    changes: list[tuple[str, int, str | None]],
    code: ErrorCode,
) -> None:
    before = await describe(client, BROKER, OWN)
    assert await alter(client, BROKER, name, *changes) == code
    assert await describe(client, BROKER, OWN) == before
    assert broker.catalog.resource_configs() == {}


async def test_checked_only_nothing_changes(broker: Broker, client: Any) -> None:
    change = ("message.max.bytes", SET, "7")
    assert await alter(client, BROKER, EVERY, change, validate_only=True) == 0
    assert broker.config.message_max_bytes == 1048588
    assert broker.catalog.resource_configs() == {}


async def test_lists_of_the_broker_are_added_to(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    change = ("log.cleanup.policy", APPEND, "compact")
    assert await alter(client, BROKER, EVERY, change) == 0
    assert topic.local[0].config.cleanup_policy == {"delete", "compact"}
    assert await alter(client, BROKER, EVERY, ("log.cleanup.policy", SUBTRACT, "delete")) == 0
    assert topic.local[0].config.cleanup_policy == {"compact"}


async def test_settings_without_effect_are_stored_and_shown(broker: Broker, client: Any) -> None:
    assert await alter(client, BROKER, OWN, ("num.io.threads", SET, "9")) == 0
    shown = (await describe(client, BROKER, OWN))["num.io.threads"]
    assert values(shown) == [("num.io.threads", "9", DYNAMIC), ("num.io.threads", "8", DEFAULT)]


async def test_secrets_are_not_shown(start_broker: StartBroker, connect: Any) -> None:
    broker = await start_broker({"ssl.keystore.password": "geheim"})
    shown = (await describe(await connect(broker), BROKER, OWN))["ssl.keystore.password"]
    assert (shown.value, shown.is_sensitive, shown.config_source) == (None, True, STATIC)
    assert values(shown) == [("ssl.keystore.password", None, STATIC)]


async def test_connections_are_limited_from_now_on(
    broker: Broker, client: Any, connect: Any
) -> None:
    assert await alter(client, BROKER, OWN, ("max.connections.per.ip", SET, "1")) == 0
    assert await (await connect(broker)).is_closed()
    assert await alter(client, BROKER, OWN, ("max.connections.per.ip", DELETE, None)) == 0
    assert await describe(await connect(broker), BROKER, EVERY) == {}


# Loggers and client metrics.


async def test_a_loggers_level_is_its_own_until_it_is_deleted(broker: Broker, client: Any) -> None:
    before = await describe(client, LOGGER, OWN)
    level = before["root"].value
    assert await alter(client, LOGGER, OWN, ("server", SET, "TRACE")) == 0
    assert (await describe(client, LOGGER, OWN))["server"].value == "TRACE"
    assert await alter(client, LOGGER, OWN, ("root", SET, "ERROR")) == 0
    shown = {name: entry.value for name, entry in (await describe(client, LOGGER, OWN)).items()}
    assert shown["broker"] == shown["root"] == "ERROR"
    assert shown["server"] == "TRACE"
    assert await alter(client, LOGGER, OWN, ("server", DELETE, None)) == 0
    assert await alter(client, LOGGER, OWN, ("root", SET, level)) == 0
    assert await describe(client, LOGGER, OWN) == before
    assert logging.logger_levels()["server"] == logging.logger_levels()["root"]


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        (OWN, ("server", SET, "warn"), ErrorCode.INVALID_CONFIG),
        (OWN, ("unknown", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (OWN, ("server", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (OWN, ("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ("2", ("server", SET, "INFO"), ErrorCode.INVALID_REQUEST),
        (EVERY, ("server", SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_levels_that_are_refused(
    client: Any, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    before = logging.logger_levels()
    assert await alter(client, LOGGER, name, change) == code
    assert logging.logger_levels() == before
    assert await replace(client, LOGGER, OWN, server="INFO") == ErrorCode.INVALID_REQUEST


async def test_client_metrics_are_stored_listed_and_shown(broker: Broker, client: Any) -> None:
    changes = [("interval.ms", SET, "1000"), ("match", SET, "client_id=a.*")]
    assert await alter(client, METRICS, "m", *changes, validate_only=True) == 0
    assert broker.stored_configs.names(METRICS) == []
    assert await alter(client, METRICS, "m", *changes) == 0
    shown = await describe(client, METRICS, "m")
    assert {name: (each.value, each.config_source) for name, each in shown.items()} == {
        "interval.ms": ("1000", 7),
        "match": ("client_id=a.*", 7),
        "metrics": ("", DEFAULT),
    }
    request = ListConfigResourcesRequest()
    answer = await client.ask(request, 0, ListConfigResourcesResponse)
    assert [each.resource_name for each in answer.config_resources] == ["m"]
    assert await replace(client, METRICS, "m") == 0
    assert broker.stored_configs.names(METRICS) == []


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("m", ("interval.ms", SET, "99"), ErrorCode.INVALID_REQUEST),
        ("m", ("interval.ms", SET, "bbb"), ErrorCode.INVALID_CONFIG),
        ("m", ("interval.ms", SET, "2147483648"), ErrorCode.INVALID_CONFIG),
        ("m", ("nope", SET, "99"), ErrorCode.INVALID_REQUEST),
        ("m", ("match", SET, "colour=red"), ErrorCode.INVALID_CONFIG),
        ("m", ("match", SET, "client_id=["), ErrorCode.INVALID_CONFIG),
        # Java's look-around: no linear time.
        ("m", ("match", SET, "client_id=(?!x).*"), ErrorCode.INVALID_CONFIG),
        # What Python's own expressions fail over, or take long for.
        ("m", ("match", SET, f"client_id={'(' * 3000}{')' * 3000}"), ErrorCode.INVALID_CONFIG),
        ("m", ("match", SET, f"client_id={'(a|b)' * 6000}"), ErrorCode.INVALID_CONFIG),
        ("m", ("metrics", SET, "a" * 10_001), ErrorCode.INVALID_CONFIG),
        ("m", ("metrics", APPEND, "a"), ErrorCode.INVALID_CONFIG),
        ("", ("interval.ms", SET, "1000"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_subscriptions_that_are_refused(
    broker: Broker, client: Any, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    assert await alter(client, METRICS, name, change) == code
    assert broker.stored_configs.names(METRICS) == []


async def test_so_many_groups_have_configs_and_no_more(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_configs, "RESOURCES_MAX", 2)
    change = ("consumer.session.timeout.ms", SET, "50000")
    codes = [await alter(client, GROUP, name, change) for name in ("a", "b", "c", "a")]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert broker.stored_configs.names(GROUP) == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [(GROUP, ("consumer.session.timeout.ms", SET, "50000")), (METRICS, ("metrics", SET, "a"))],
)
async def test_what_has_configs_has_a_name_of_a_bounded_length(
    client: Any, kind: int, change: tuple[str, int, str]
) -> None:
    """All of them are in memory: 4,000 with names of 30 KB took 586 MB."""
    assert await alter(client, kind, "n" * 1024, change) == 0
    assert await alter(client, kind, "n" * 1025, change) == ErrorCode.POLICY_VIOLATION


async def test_a_group_has_its_own_configs_within_the_brokers_bounds(
    broker: Broker, client: Any
) -> None:
    name, behind = "consumer.session.timeout.ms", "group.consumer.session.timeout.ms"
    assert await alter(client, GROUP, "g", (name, SET, "50000")) == 0
    shown = (await describe(client, GROUP, "g"))[name]
    assert (shown.config_source, shown.read_only) == (8, False)
    assert values(shown) == [(name, "50000", 8), (behind, "45000", DEFAULT)]
    assert values((await describe(client, GROUP, "h"))[name]) == [(behind, "45000", DEFAULT)]
    assert broker.groups.consumer.settings.of("g").session_timeout_ms == 50000
    assert broker.groups.consumer.settings.of("h").session_timeout_ms == 45000
    assert await alter(client, GROUP, "g", (name, DELETE, None)) == 0
    assert broker.groups.consumer.settings.of("g").session_timeout_ms == 45000
    assert broker.stored_configs.names(GROUP) == []


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("g", ("consumer.session.timeout.ms", SET, "44999"), ErrorCode.INVALID_CONFIG),
        ("g", ("consumer.session.timeout.ms", SET, "60001"), ErrorCode.INVALID_CONFIG),
        ("g", ("consumer.heartbeat.interval.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("g", ("share.delivery.count.limit", SET, "11"), ErrorCode.INVALID_CONFIG),
        ("g", ("share.auto.offset.reset", SET, "never"), ErrorCode.INVALID_CONFIG),
        ("g", ("streams.num.standby.replicas", SET, "3"), ErrorCode.INVALID_CONFIG),
        ("g", ("nope", SET, "1"), ErrorCode.INVALID_CONFIG),
        ("g", ("share.isolation.level", APPEND, "read_committed"), ErrorCode.INVALID_CONFIG),
        ("", ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_group_configs_that_are_refused(
    broker: Broker, client: Any, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    assert await alter(client, GROUP, name, change) == code
    assert broker.stored_configs.names(GROUP) == []


async def test_a_group_whose_members_would_die_between_two_heartbeats_is_refused(
    start_broker: StartBroker, connect: Any
) -> None:
    broker = await start_broker({"group.consumer.min.session.timeout.ms": "6000"})
    client = await connect(broker)
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    both = [(session, SET, "6000"), (interval, SET, "6000")]
    assert await alter(client, GROUP, "g", *both) == ErrorCode.INVALID_CONFIG
    assert await alter(client, GROUP, "g", both[0]) == 0
    # Against what the group has by now, and the broker's.
    assert await alter(client, GROUP, "g", both[1]) == ErrorCode.INVALID_CONFIG
    assert await alter(client, GROUP, "h", both[1]) == 0
