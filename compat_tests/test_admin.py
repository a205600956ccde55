"""The life of topics through confluent-kafka's AdminClient and through Kafka's own tools."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions

from compat_tests import tool_box
from compat_tests.admin import configure
from compat_tests.brokers import WORKERS, Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT
from compat_tests.confluent_client import consumer, producer, send
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.offsets import commit
from compat_tests.raw import Connection
from compat_tests.waiting import eventually

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_PARTITIONS = 37
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
EARLIEST = -2


@cache
def client_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def admin(broker: Broker) -> AdminClient:
    """Return the client of this broker; one that is let go of forgets what it was asked."""
    return client_of(broker.bootstrap)


def outcome(futures: dict[Any, Any]) -> int:
    """Return the error code of the one result, 0 for none."""
    (future,) = futures.values()
    try:
        future.result(timeout=TIMEOUT_S)
    except KafkaException as refused:
        return int(refused.args[0].code())
    return 0


def watermarks_if_led(broker: Broker, topic: str) -> tuple[int, int] | None:
    """As `watermarks`; None while a broker that has just started does not lead the partition."""
    try:
        return watermarks(broker, topic)
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
            raise
        return None


# CreatePartitions.


def has_leaders(broker: Broker, topic: str, partition_count: int) -> bool:
    described = admin(broker).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return len(described) == partition_count and all(
        1 <= partition.leader <= WORKERS for partition in described.values()
    )


def test_added_partitions_take_records(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    assert outcome(admin(broker).create_partitions([NewPartitions(orders, 3)])) == 0
    eventually(lambda: has_leaders(broker, orders, 3))
    assert send(producer(broker.bootstrap), orders, [(b"k", b"v")], partition=2) == [0]
    described = tool_box.run(
        "TopicCommand", "--bootstrap-server", broker.bootstrap, "--describe", "--topic", orders
    )
    assert "PartitionCount: 3" in described
    assert described.count("Leader: ") == 3


@pytest.mark.parametrize(
    ("count", "replicas", "code"),
    [
        (2, None, INVALID_PARTITIONS),
        (1, None, INVALID_PARTITIONS),
        (3, [[1, 1]], INVALID_REPLICA_ASSIGNMENT),
        (3, [[1]], 0),
    ],
)
def test_growth_that_no_topic_can_have(
    broker: Broker, topic: MakeTopic, count: int, replicas: list[list[int]] | None, code: int
) -> None:
    orders = topic("orders", partitions=2)
    growth = (
        NewPartitions(orders, count)
        if replicas is None
        else NewPartitions(orders, count, replica_assignment=replicas)
    )
    assert outcome(admin(broker).create_partitions([growth], validate_only=True)) == code


def test_only_topics_that_exist_grow(broker: Broker, name: MakeName) -> None:
    growth = NewPartitions(name("none"), 3)
    assert outcome(admin(broker).create_partitions([growth])) == UNKNOWN_TOPIC_OR_PARTITION


def test_javas_tool_adds_partitions(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    server = ("--bootstrap-server", broker.bootstrap, "--topic", orders)
    tool_box.run("TopicCommand", *server, "--alter", "--partitions", "4")
    eventually(lambda: "PartitionCount: 4" in tool_box.run("TopicCommand", *server, "--describe"))


# DeleteRecords.


def delete_records(broker: Broker, topic: str, offset: int, partition: int = 0) -> int:
    """Return the low watermark. Raises what is refused."""
    futures = admin(broker).delete_records([TopicPartition(topic, partition, offset)])
    (future,) = futures.values()
    return int(future.result(timeout=TIMEOUT_S).low_watermark)


def fill(broker: Broker, topic: str, count: int) -> None:
    client = producer(broker.bootstrap, linger_ms=0, batch_num_messages=4)
    send(client, topic, [(b"k", b"%d" % n) for n in range(count)])


def watermarks(broker: Broker, topic: str) -> tuple[int, int]:
    client = consumer(broker.bootstrap)
    try:
        found = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        assert found is not None
        return int(found[0]), int(found[1])
    finally:
        client.close()


def test_deleted_records_are_gone_for_every_reader(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    fill(broker, orders, 20)
    assert delete_records(broker, orders, 6) == 6
    assert delete_records(broker, orders, 3) == 6
    assert watermarks(broker, orders) == (6, 20)
    assert [value for _, _, value in CONFLUENT.consume(broker.bootstrap, orders)] == [
        b"%d" % n for n in range(6, 20)
    ]
    with Connection(broker.bootstrap) as connection:
        assert connection.list_offset(orders, EARLIEST) == (0, -1, 6)
    assert delete_records(broker, orders, -1) == 20
    assert watermarks(broker, orders) == (20, 20)
    fill(broker, orders, 1)
    assert watermarks(broker, orders) == (20, 21)


def test_a_group_whose_offset_is_gone_starts_where_it_is_told(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """A committed offset below the log's start stays as it is; the reader resets its position."""
    orders, group = topic("orders"), name("group")
    fill(broker, orders, 10)
    client = consumer(broker.bootstrap, group)
    commit(client, TopicPartition(orders, 0, 2))
    assert delete_records(broker, orders, 5) == 5
    (committed,) = client.committed([TopicPartition(orders, 0)], timeout=TIMEOUT_S)
    assert committed.offset == 2
    client.subscribe([orders])
    first = None
    deadline = time.monotonic() + TIMEOUT_S
    while first is None and time.monotonic() < deadline:
        first = client.poll(0.5)
    client.close()
    assert first is not None
    assert first.error() is None
    assert (first.offset(), first.value()) == (5, b"5")


def test_deletions_that_are_refused(broker: Broker, topic: MakeTopic, name: MakeName) -> None:
    orders = topic("orders")
    compacted = topic("compacted", cleanup_policy="compact")
    fill(broker, orders, 2)
    for asked, offset, code in (
        (orders, 3, OFFSET_OUT_OF_RANGE),
        (compacted, 0, POLICY_VIOLATION),
    ):
        with pytest.raises(KafkaException) as refused:
            delete_records(broker, asked, offset)
        assert refused.value.args[0].code() == code


def check_start_after_restart(broker: Broker, topic_on: MakeTopic, *, clean: bool) -> None:
    orders = topic_on(broker, "orders")
    fill(broker, orders, 10)
    assert delete_records(broker, orders, 7) == 7
    broker.restart(clean=clean)
    eventually(lambda: watermarks_if_led(broker, orders) == (7, 10))
    read = [value for _, _, value in CONFLUENT.consume(broker.bootstrap, orders)]
    assert read == [b"7", b"8", b"9"]


def test_the_start_is_where_it_was_after_a_restart(own_broker: Broker, topic_on: MakeTopic) -> None:
    check_start_after_restart(own_broker, topic_on, clean=True)


@pytest.mark.magnetar_only("Kafka writes start offsets once a minute: killed, it has the old ones")
def test_the_start_is_where_it_was_after_a_kill(own_broker: Broker, topic_on: MakeTopic) -> None:
    check_start_after_restart(own_broker, topic_on, clean=False)


def test_javas_tool_deletes_records(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    orders = topic("orders")
    fill(broker, orders, 10)
    asked = tmp_path / "offsets.json"
    partitions = [{"topic": orders, "partition": 0, "offset": 4}]
    asked.write_text(json.dumps({"version": 1, "partitions": partitions}))
    server = ("--bootstrap-server", broker.bootstrap)
    printed = tool_box.run("DeleteRecordsCommand", *server, "--offset-json-file", str(asked))
    assert "low_watermark: 4" in printed
    earliest = tool_box.run("GetOffsetShell", *server, "--topic", orders, "--time", "-2")
    assert earliest.strip() == f"{orders}:0:4"


# Configs.


def resource(topic: str, *changes: tuple[str, AlterConfigOpType, str | None]) -> ConfigResource:
    entries = [
        ConfigEntry(name, value, incremental_operation=operation)
        for name, operation, value in changes
    ]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def alter(broker: Broker, asked: ConfigResource, *, validate_only: bool = False) -> int:
    return outcome(admin(broker).incremental_alter_configs([asked], validate_only=validate_only))


def config(broker: Broker, topic: str, name: str) -> tuple[str, int]:
    """Return a topic's config and the number of its source: 1 is the topic, 5 the default."""
    futures = admin(broker).describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
    (future,) = futures.values()
    entry = future.result(timeout=TIMEOUT_S)[name]
    return entry.value, int(entry.source)


SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


def test_topic_configs_are_changed_one_by_one(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", retention_ms="1234567")
    changes = resource(
        orders, ("max.message.bytes", SET, "2000"), ("cleanup.policy", APPEND, "compact")
    )
    assert alter(broker, changes, validate_only=True) == 0
    assert config(broker, orders, "max.message.bytes") == ("1048588", 5)
    assert alter(broker, changes) == 0
    eventually(lambda: config(broker, orders, "max.message.bytes") == ("2000", 1))
    assert config(broker, orders, "cleanup.policy") == ("delete,compact", 1)
    assert config(broker, orders, "retention.ms") == ("1234567", 1)
    back = resource(
        orders,
        ("max.message.bytes", DELETE, None),
        ("cleanup.policy", SUBTRACT, "delete"),
    )
    assert alter(broker, back) == 0
    eventually(lambda: config(broker, orders, "max.message.bytes") == ("1048588", 5))
    assert config(broker, orders, "cleanup.policy") == ("compact", 1)


def test_a_smaller_limit_acts_on_the_next_batch(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    large = [(b"k", b"x" * 3000)]
    client = producer(broker.bootstrap)
    assert send(client, orders, large) == [0]
    configure(broker, orders, max_message_bytes="2000")
    with pytest.raises(KafkaException) as refused:
        send(producer(broker.bootstrap), orders, large)
    assert refused.value.args[0].name() == "MSG_SIZE_TOO_LARGE"


@pytest.mark.parametrize(
    ("changed", "operation", "value", "code"),
    [
        ("max.message.bytes", SET, "x", INVALID_CONFIG),
        ("segment.bytes", SET, "10", INVALID_CONFIG),
        ("no.such.config", SET, "1", INVALID_CONFIG),
        ("no.such.config", DELETE, None, 0),
        ("retention.ms", APPEND, "1", INVALID_CONFIG),
        ("cleanup.policy", APPEND, "nothing", INVALID_CONFIG),
        ("cleanup.policy", SUBTRACT, "nothing", 0),
    ],
)
def test_changes_of_one_config(
    broker: Broker,
    topic: MakeTopic,
    changed: str,
    operation: AlterConfigOpType,
    value: str | None,
    code: int,
) -> None:
    assert alter(broker, resource(topic("orders"), (changed, operation, value))) == code


def test_only_what_exists_is_changed(broker: Broker, name: MakeName) -> None:
    missing = resource(name("none"), ("retention.ms", SET, "1"))
    assert alter(broker, missing) == UNKNOWN_TOPIC_OR_PARTITION


def test_a_brokers_fixed_configs_stay(broker: Broker) -> None:
    entry = ConfigEntry("num.partitions", "7", incremental_operation=SET)
    asked = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    assert alter(broker, asked) == INVALID_REQUEST


def test_replacing_configs_forgets_the_others(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", retention_ms="1234567")
    asked = ConfigResource(ResourceType.TOPIC, orders, set_config={"segment.ms": "60000"})
    assert outcome(admin(broker).alter_configs([asked])) == 0
    eventually(lambda: config(broker, orders, "segment.ms") == ("60000", 1))
    assert config(broker, orders, "retention.ms") == ("604800000", 5)


def test_configs_are_kept_through_a_kill(own_broker: Broker, topic_on: MakeTopic) -> None:
    orders = topic_on(own_broker, "orders")
    assert alter(own_broker, resource(orders, ("max.message.bytes", SET, "2000"))) == 0
    own_broker.restart(clean=False)
    eventually(lambda: config(own_broker, orders, "max.message.bytes") == ("2000", 1))


def test_javas_tool_changes_configs(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    server = ("--bootstrap-server", broker.bootstrap)
    entity = (*server, "--entity-type", "topics", "--entity-name", orders)

    def described() -> str:
        return tool_box.run("ConfigCommand", *entity, "--describe")

    tool_box.run("ConfigCommand", *entity, "--alter", "--add-config", "max.message.bytes=2000")
    eventually(lambda: "max.message.bytes=2000" in described())
    tool_box.run("ConfigCommand", *entity, "--alter", "--delete-config", "max.message.bytes")
    eventually(lambda: "max.message.bytes" not in described())


# What describes the cluster.


@pytest.mark.local_files("Their sizes are compared with what it says")
def test_javas_tool_shows_the_sizes_of_logs(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    fill(broker, orders, 10)
    printed = tool_box.run(
        "LogDirsCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", orders),
    )
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    brokers = json.loads(line)["brokers"]
    assert len(brokers) == (WORKERS if broker.kind == "magnetar" else 1)
    directories = [found for each in brokers for found in each["logDirs"]]
    (directory,) = [each for each in directories if each["partitions"]]
    (partition,) = directory["partitions"]
    path = broker.partition_directory(orders, 0)
    assert Path(directory["logDir"]) == path.parent
    assert partition["partition"] == f"{orders}-0"
    assert partition["size"] == sum(each.stat().st_size for each in path.glob("*.log"))


def test_javas_tools_find_no_election_and_no_move(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic("orders")
    server = ("--bootstrap-server", broker.bootstrap)
    printed = tool_box.run(
        "LeaderElectionCommand",
        *(*server, "--election-type", "preferred", "--topic", orders, "--partition", "0"),
    )
    assert f"Valid replica already elected for partitions {orders}-0" in printed
    listed = tool_box.run("reassign.ReassignPartitionsCommand", *server, "--list")
    assert "No partition reassignments found." in listed


def test_a_page_of_partitions_is_as_long_as_java_asks(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", partitions=5)
    described = tool_box.run(
        "TopicCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--topic", orders),
        *("--partition-size-limit-per-response", "2"),
    )
    assert described.count(f"Topic: {orders}\tPartition:") == 5
