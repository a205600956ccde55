"""Every config that Kafka shows, read from Kafka, and what magnetar shows under that name."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName
from compat_tests.raw import Connection

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
DEFAULT = 5

#: Broker configs whose default is not Kafka's, and why.
OTHER_DEFAULTS = {
    "broker.id": "Kafka's -1 has ZooKeeper choose one",
    "group.consumer.assignment.interval.ms": "a member that joins alone pays for Kafka's 1000",
    "group.initial.rebalance.delay.ms": "a consumer that starts alone pays for Kafka's 3000",
    "listener.security.protocol.map": "PLAINTEXT is what is served",
    "listeners": "a broker without authentication listens on this machine only",
    "log.dir": "relative to where the broker is started",
    "metric.reporters": "a class of Java",
    "node.id": "one is enough for one broker",
    "principal.builder.class": "a class of Java",
    "queued.max.request.bytes": "Kafka's has no limit",
    "remote.log.metadata.manager.class.name": "a class of Java",
    "sasl.oauthbearer.jwt.retriever.class": "a class of Java",
    "socket.receive.buffer.bytes": "the operating system chooses",
    "socket.send.buffer.bytes": "the operating system chooses",
}
#: Broker configs that Kafka changes at run time and magnetar does not, or the other way round.
OTHERWISE_READ_ONLY = {
    "config.providers": "what clients set at run time is taken as it is",
    "listener.security.protocol.map": "the listeners stay what they were at the start",
    "listeners": "the listeners stay what they were at the start",
}
#: Broker configs whose type is another one.
OTHER_TYPES = {
    "listener.security.protocol.map": "a list here",
    "log.dir": "one directory here",
}
#: Names of magnetar's own, but for those of its metrics.
OWN = {
    "cluster.allow.async.storage",
    "cluster.objects",
    "cluster.objects.after.ms",
    "cluster.objects.backlog.max.bytes",
    "cluster.storage",
    "connection.max.in.flight.requests",
    "durability",
    "joint.child.expiration.ms",
    "joint.transactions.separator",
    "joint.vote.timeout.ms",
    "journal.damage.accept",
    "log.dir.reserve.bytes",
    "max.active.transactions",
    "max.groups",
    "peers.listener",
    "traces.exporter",
    "transaction.healing.interval.ms",
    "transaction.offset.conflict.detection.enable",
}


class Shown(NamedTuple):
    """One config of a resource."""

    value: str | None
    default: str | None
    config_type: int
    read_only: bool
    is_sensitive: bool
    synonyms: list[tuple[str, str | None, int]]


def describe(broker: Broker, resource_type: int, name: str) -> dict[str, Shown]:
    request = DescribeConfigsRequest(
        version=4,
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=None
            )
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    with Connection(broker.bootstrap) as connection:
        (result,) = connection.call(request, DescribeConfigsResponse).results
    assert result.error_code == 0, result
    assert result.error_message == ""
    return {config.name: shown(config) for config in result.configs}


def shown(config: Any) -> Shown:
    synonyms = [(each.name, each.value, each.source) for each in config.synonyms]
    defaults = [value for name, value, source in synonyms if (name, source) == (config.name, 5)]
    return Shown(
        config.value,
        defaults[0] if defaults else None,
        config.config_type,
        config.read_only,
        config.is_sensitive,
        synonyms,
    )


def test_topics_have_kafkas_configs_with_kafkas_defaults(
    both_brokers: tuple[Broker, Broker], name: MakeName
) -> None:
    orders = name("orders")
    for broker in both_brokers:
        create_topic(broker.bootstrap, orders)
    ours, kafkas = (describe(broker, TOPIC, orders) for broker in both_brokers)
    # Of Kafka the cluster has one that it set itself: its own story, with replicas.
    kafkas["min.insync.replicas"].synonyms.remove(("min.insync.replicas", "1", 3))
    assert ours == kafkas


def test_a_config_of_kafkas_own_tests_is_shown_where_it_is_set(
    both_brokers: tuple[Broker, Broker], name: MakeName
) -> None:
    orders = name("orders")
    for broker in both_brokers:
        create_topic(broker.bootstrap, orders, configs={"internal_segment_bytes": "500"})
    ours, kafkas = (describe(broker, TOPIC, orders) for broker in both_brokers)
    assert ours["internal.segment.bytes"] == kafkas["internal.segment.bytes"]
    assert ours.keys() == kafkas.keys()


def created(broker: Broker, name: str, own: dict[str, str]) -> list[tuple[str, str | None]]:
    """Return the configs that the answer to a creation has, as it lists them."""
    asked = CreateTopicsRequest.CreatableTopic
    configs = [asked.CreatableTopicConfig(name=each, value=text) for each, text in own.items()]
    request = CreateTopicsRequest(
        version=7,
        topics=[
            asked(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs
            )
        ],
        timeout_ms=5000,
        validate_only=False,
    )
    with Connection(broker.bootstrap) as connection:
        (result,) = connection.call(request, CreateTopicsResponse).topics
    assert result.error_code == 0, result
    return [(config.name, config.value) for config in result.configs]


@pytest.mark.parametrize("own", [{}, {"retention.ms": "7", "internal.segment.bytes": "500"}])
def test_a_creation_is_answered_with_the_topics_configs_in_kafkas_order(
    both_brokers: tuple[Broker, Broker], name: MakeName, own: dict[str, str]
) -> None:
    orders = name("orders")
    ours, kafkas = (created(broker, orders, own) for broker in both_brokers)
    assert ours == kafkas
    assert dict(kafkas).items() >= own.items()


@pytest.mark.parametrize("resource", [(GROUP, "anyone"), (CLIENT_METRICS, "any")])
def test_groups_and_client_metrics_have_kafkas_configs_with_kafkas_defaults(
    both_brokers: tuple[Broker, Broker], resource: tuple[int, str]
) -> None:
    ours, kafkas = (describe(broker, *resource) for broker in both_brokers)
    if resource[0] == GROUP:
        # The tests set it; what it is else is compared with the broker's.
        interval = "consumer.assignment.interval.ms"
        assert ours.pop(interval).value == kafkas.pop(interval).value == "0"
    assert ours == kafkas


def test_the_broker_has_kafkas_configs(both_brokers: tuple[Broker, Broker]) -> None:
    ours, kafkas = (describe(broker, BROKER, "1") for broker in both_brokers)
    assert kafkas.keys() - ours.keys() == set()
    own = {name for name in ours.keys() - kafkas.keys() if not name.startswith("metrics.")}
    assert own == OWN
    for what, excepted in (
        ("default", OTHER_DEFAULTS),
        ("read_only", OTHERWISE_READ_ONLY),
        ("config_type", OTHER_TYPES),
        ("is_sensitive", {}),
    ):
        differing = {
            name: (getattr(ours[name], what), getattr(kafkas[name], what))
            for name in kafkas
            if getattr(ours[name], what) != getattr(kafkas[name], what)
        }
        assert differing.keys() == excepted.keys(), (what, differing)


def test_nothing_is_set_for_every_broker_at_first(both_brokers: tuple[Broker, Broker]) -> None:
    ours, kafkas = (describe(broker, BROKER, "") for broker in both_brokers)
    assert ours == {}
    assert kafkas.keys() <= {"min.insync.replicas"}
