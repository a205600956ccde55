"""Configs of the broker change while it runs: sources, precedence, effect, refusals."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from kafka.protocol.admin import AlterConfigsRequest, AlterConfigsResponse

from compat_tests.brokers import Broker
from compat_tests.config_frames import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    TOPIC,
    Synonyms,
    alter,
    await_synonyms,
    described,
    synonyms,
)
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeTopic
from compat_tests.raw import Connection
from compat_tests.waiting import eventually

OWN, EVERY = "1", ""
INVALID_CONFIG, INVALID_REQUEST = 40, 42


def test_one_brokers_wins_over_every_brokers_and_topics_inherit(
    broker: Broker, topic: MakeTopic
) -> None:
    orders, name = topic("orders"), "log.message.timestamp.before.max.ms"
    default = (name, str(2**63 - 1), 5)
    assert alter(broker, EVERY, (name, SET, "9000000000000000"), validate_only=True) == 0
    await_synonyms(broker, BROKER, OWN, name, [default])
    assert alter(broker, EVERY, (name, SET, "9000000000000000")) == 0
    assert alter(broker, OWN, (name, SET, "8000000000000000")) == 0
    shared, own = (name, "9000000000000000", 3), (name, "8000000000000000", 2)
    await_synonyms(broker, BROKER, OWN, name, [own, shared, default])
    await_synonyms(broker, BROKER, EVERY, name, [shared])
    inherited = "message.timestamp.before.max.ms"
    await_synonyms(broker, TOPIC, orders, inherited, [own, shared, default])
    assert alter(broker, OWN, (name, DELETE, None)) == 0
    await_synonyms(broker, TOPIC, orders, inherited, [shared, default])
    assert alter(broker, EVERY, (name, DELETE, None)) == 0
    await_synonyms(broker, TOPIC, orders, inherited, [default])


@pytest.mark.parametrize(
    ("setting", "inherited", "default"),
    [
        ("log.roll.jitter.ms", "segment.jitter.ms", "0"),
        ("log.local.retention.ms", "local.retention.ms", "-2"),
        ("log.local.retention.bytes", "local.retention.bytes", "-2"),
    ],
)
def test_topics_inherit_what_has_no_effect(
    broker: Broker, topic: MakeTopic, setting: str, inherited: str, default: str
) -> None:
    orders = topic("orders")

    def shown() -> tuple[str | None, int]:
        (config,) = described(broker, TOPIC, orders, inherited)
        return config.value, config.config_source

    assert shown() == (default, 5)
    assert alter(broker, EVERY, (setting, SET, "3600000")) == 0
    eventually(lambda: shown() == ("3600000", 3))
    assert synonyms(broker, TOPIC, orders, inherited)[0] == (setting, "3600000", 3)
    assert alter(broker, EVERY, (setting, DELETE, None)) == 0
    eventually(lambda: shown() == (default, 5))


def test_a_brokers_limit_acts_on_topics_at_once_and_outlives_it(
    own_broker: Broker, topic_on: MakeTopic
) -> None:
    orders, name = topic_on(own_broker, "orders"), "message.max.bytes"
    large = [(b"k", b"x" * 3000)]
    assert alter(own_broker, EVERY, (name, SET, "2000")) == 0
    await_synonyms(own_broker, BROKER, OWN, name, [(name, "2000", 3), (name, "1048588", 5)])
    own_broker.restart(clean=False)
    await_synonyms(own_broker, BROKER, OWN, name, [(name, "2000", 3), (name, "1048588", 5)])
    with pytest.raises(KafkaException) as refused:
        send(producer(own_broker.bootstrap), orders, large)
    assert refused.value.args[0].name() == "MSG_SIZE_TOO_LARGE"
    assert alter(own_broker, EVERY, (name, DELETE, None)) == 0
    await_synonyms(own_broker, BROKER, OWN, name, [(name, "1048588", 5)])
    assert send(producer(own_broker.bootstrap), orders, large) == [0]


@pytest.mark.parametrize("name", [OWN, EVERY])
def test_what_no_broker_changes_while_it_runs(broker: Broker, name: str) -> None:
    for changes, code in (
        ([("num.partitions", SET, "7")], INVALID_REQUEST),
        ([("node.id", SET, "7")], INVALID_REQUEST),
        ([("log.retention.hours", SET, "7")], INVALID_REQUEST),
        ([("ssl.keystore.location", SET, "/x")], INVALID_REQUEST),
        ([("message.max.bytes", SET, "x")], INVALID_REQUEST),
        ([("message.max.bytes", SET, "-1")], INVALID_REQUEST),
        ([("log.segment.bytes", SET, "20")], INVALID_REQUEST),
        ([("log.retention.ms", SET, "0")], INVALID_REQUEST),
        ([("log.roll.ms", SET, "0")], INVALID_REQUEST),
        ([("message.max.bytes", APPEND, "7")], INVALID_CONFIG),
        ([("log.cleanup.policy", APPEND, "burn")], INVALID_REQUEST),
        ([("message.max.bytes", 9, "7")], INVALID_REQUEST),
        ([("max.connections", SET, "7"), ("max.connections", SET, "8")], INVALID_REQUEST),
        ([("message.max.bytes", SET, "7"), ("node.id", SET, "7")], INVALID_REQUEST),
    ):
        assert alter(broker, name, *changes) == code, changes
    assert synonyms(broker, BROKER, OWN, "message.max.bytes") == [
        ("message.max.bytes", "1048588", 5)
    ]


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("sasl.kerberos.min.time.before.relogin", "58000", "60000"),
        ("sasl.login.refresh.window.factor", "0.7", "0.8"),
        ("ssl.keymanager.algorithm", "PKIX", "SunX509"),
    ],
)
def test_what_is_stored_for_the_listeners_of_one_broker_alone(
    broker: Broker, name: str, value: str, default: str
) -> None:
    assert alter(broker, EVERY, (name, SET, value)) == INVALID_REQUEST
    assert alter(broker, OWN, (name, SET, value)) == 0
    await_synonyms(broker, BROKER, OWN, name, [(name, value, 2), (name, default, 5)])
    assert alter(broker, OWN, (name, DELETE, None)) == 0
    await_synonyms(broker, BROKER, OWN, name, [(name, default, 5)])


def test_a_setting_of_one_listener_is_shown_under_its_whole_name(broker: Broker) -> None:
    base, default = "max.connections", ("max.connections", "2147483647", 5)
    name = f"listener.name.plaintext.{base}"
    assert alter(broker, EVERY, (name, SET, "9000"), (base, SET, "9500")) == 0
    assert alter(broker, OWN, (name, SET, "8000")) == 0
    shared: Synonyms = [(name, "9000", 3), (base, "9500", 3)]
    await_synonyms(broker, BROKER, OWN, name, [(name, "8000", 2), *shared, default])
    await_synonyms(broker, BROKER, EVERY, name, shared)
    shown = [
        (config.name, config.value, config.config_source, config.read_only)
        for config in described(broker, BROKER, OWN)
        if config.name.endswith(base)
    ]
    assert sorted(shown) == [(name, "8000", 2, True), (base, "9500", 3, False)]
    assert alter(broker, OWN, (name, DELETE, None)) == 0
    assert alter(broker, EVERY, (name, DELETE, None), (base, DELETE, None)) == 0
    await_synonyms(broker, BROKER, OWN, base, [default])
    assert described(broker, BROKER, OWN, name) == []


def test_other_brokers_are_not_this_one(broker: Broker) -> None:
    change = ("message.max.bytes", SET, "7000")
    assert alter(broker, "2", change) == INVALID_REQUEST
    assert alter(broker, "x", change) == INVALID_REQUEST
    assert alter(broker, "2") == INVALID_REQUEST
    assert alter(broker, OWN) == 0


def test_replacing_forgets_what_is_not_named(broker: Broker) -> None:
    first, second = "log.index.interval.bytes", "log.message.timestamp.after.max.ms"
    assert alter(broker, OWN, (first, SET, "5000")) == 0
    config = AlterConfigsRequest.AlterConfigsResource.AlterableConfig(name=second, value="70000")
    for configs in ([config], []):
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER, resource_name=OWN, configs=configs
        )
        request = AlterConfigsRequest(version=2, resources=[resource], validate_only=False)
        with Connection(broker.bootstrap) as connection:
            (response,) = connection.call(request, AlterConfigsResponse).responses
        assert response.error_code == 0
        own = [(second, "70000", 2)] if configs else []
        await_synonyms(broker, BROKER, OWN, second, [*own, (second, "3600000", 5)])
        await_synonyms(broker, BROKER, OWN, first, [(first, "4096", 5)])
