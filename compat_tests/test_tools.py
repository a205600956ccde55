"""Kafka's own administration tools, every verb an operator uses, against both brokers.

They run in one JVM (`tool_box`). What they print is compared where it says something of the broker.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests import tool_box
from compat_tests.admin import leader_of
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.tool_box import Ended


class Tools:
    """Kafka's tools, told where the broker is."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._server = ("--bootstrap-server", broker.bootstrap)

    def call(self, tool: str, *arguments: str, stdin: str = "") -> Ended:
        return tool_box.call(tool, *self._server, *arguments, stdin=stdin)

    def run(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Return what a tool printed that did what it was asked to."""
        return tool_box.run(tool, *self._server, *arguments, stdin=stdin)

    def refuse(self, tool: str, *arguments: str) -> str:
        """Return what a tool printed that was refused."""
        ended = self.call(tool, *arguments)
        assert ended.status == 1, ended
        return ended.output + ended.errors

    def configs(self, *arguments: str) -> str:
        return self.run("ConfigCommand", *arguments)

    def await_configs(self, expected: str, *arguments: str) -> str:
        """Return what kafka-configs prints once that says so."""
        return self.await_printed(expected, "ConfigCommand", *arguments)

    def await_printed(self, expected: str, tool: str, *arguments: str) -> str:
        """Return what a tool prints once that is in it."""
        return self.until(lambda printed: expected in printed, tool, *arguments)

    def until(self, holds: Callable[[str], bool], tool: str, *arguments: str) -> str:
        """Return what a tool prints once it is right: Kafka applies after it answers."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds(printed := self.call(tool, *arguments).output):
            assert time.monotonic() < deadline, printed
        return printed


@pytest.fixture
def tools(broker: Broker) -> Tools:
    return Tools(broker)


def written(tmp_path: Path, content: Any) -> str:
    """Return the path of a file with this JSON."""
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(content))
    return str(path)


# kafka-topics.


def test_topics_live(tools: Tools, name: MakeName) -> None:
    orders = name("orders")
    of_it = ("--topic", orders)
    create = ("--create", *of_it, "--partitions", "3", "--config", "retention.ms=1000000")
    assert f"Created topic {orders}." in tools.run("TopicCommand", *create)
    assert "already exists" in tools.refuse("TopicCommand", *create)
    tools.run("TopicCommand", "--create", *of_it, "--if-not-exists")
    tools.until(lambda listed: orders in listed.split(), "TopicCommand", "--list")
    assert orders in tools.run("TopicCommand", "--list", "--exclude-internal").split()
    described = tools.run("TopicCommand", "--describe", *of_it)
    found = re.search(r"TopicId: (\S+)\tPartitionCount: 3\tReplicationFactor: 1\t(.*)", described)
    assert found is not None
    # Kafka's cluster may have set one more by itself.
    assert found[2].strip().endswith("retention.ms=1000000")
    leaders = re.findall(r"Leader: (\d)\tReplicas: \1\tIsr: \1", described)
    assert len(leaders) == 3
    assert len({*leaders}) == min(tools.broker.node_count, 3)
    by_id = tools.run("TopicCommand", "--describe", "--topic-id", found[1])
    assert by_id.count(f"Topic: {orders}\tPartition: ") == 3
    assert orders in tools.run("TopicCommand", "--describe", "--topics-with-overrides")
    for filtered in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        printed = tools.run("TopicCommand", "--describe", *of_it, f"--{filtered}-partitions")
        assert printed.count("Partition: ") == (3 if filtered == "at-min-isr" else 0)
    tools.run("TopicCommand", "--alter", *of_it, "--partitions", "5")
    tools.await_printed("PartitionCount: 5", "TopicCommand", "--describe", *of_it)
    assert "would not be an increase" in tools.refuse(
        "TopicCommand", "--alter", *of_it, "--partitions", "4"
    )
    tools.run("TopicCommand", "--delete", *of_it)
    tools.until(lambda listed: orders not in listed.split(), "TopicCommand", "--list")
    assert "does not exist as expected" in tools.refuse("TopicCommand", "--delete", *of_it)
    tools.run("TopicCommand", "--delete", *of_it, "--if-exists")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--replication-factor", "4"), "replica"),
        (("--partitions", "0"), "partitions"),
        (("--replica-assignment", "1:8"), "broker 8"),
        (("--replica-assignment", "7"), "broker 7"),
        (("--config", "nope=1"), "Unknown topic config name: nope"),
        (("--config", "segment.bytes=x"), "segment.bytes"),
    ],
)
def test_topics_that_cannot_be(
    tools: Tools, name: MakeName, arguments: tuple[str, ...], reason: str
) -> None:
    refused = tools.refuse("TopicCommand", "--create", "--topic", name("none"), *arguments)
    assert reason in refused


def test_names_that_collide_and_names_that_are_none(tools: Tools, name: MakeName) -> None:
    orders = name("orders")
    tools.run("TopicCommand", "--create", "--topic", f"{orders}_a")
    create = ("--create", "--topic", f"{orders}.a")
    assert f"collides with existing topic: {orders}_a" in tools.refuse("TopicCommand", *create)
    assert "a b" in tools.refuse("TopicCommand", "--create", "--topic", "a b")


# kafka-configs.


def test_configs_of_topics(tools: Tools, topic: MakeTopic) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic("orders"))
    added = "max.message.bytes=2000,cleanup.policy=[delete,compact]"
    tools.configs("--alter", *entity, "--add-config", added)
    expected = "max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
    shown = tools.await_configs(expected, "--describe", *entity)
    assert "cleanup.policy=delete,compact" in shown
    everything = tools.configs("--describe", *entity, "--all")
    shown_names = re.findall(r"^ *([a-z0-9.]+)=.* sensitive=false ", everything, re.M)
    assert len(set(shown_names)) == 37
    tools.configs("--alter", *entity, "--delete-config", "max.message.bytes")
    assert "nope" in tools.refuse("ConfigCommand", "--alter", *entity, "--add-config", "nope=1")


def test_configs_of_brokers(tools: Tools) -> None:
    own = ("--entity-type", "brokers", "--entity-name", "1")
    default = ("--entity-type", "brokers", "--entity-default")
    name = "log.cleaner.min.compaction.lag.ms"
    tools.configs("--alter", *own, "--add-config", f"{name}=5")
    tools.configs("--alter", *default, "--add-config", f"{name}=6")
    all_three = (
        f"{name}=5 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{name}=5,"
        f" DYNAMIC_DEFAULT_BROKER_CONFIG:{name}=6, DEFAULT_CONFIG:{name}=0}}"
    )
    tools.await_configs(all_three, "--describe", *own)
    tools.await_configs(f"{name}=6", "--describe", *default)
    both = tools.configs("--describe", "--entity-type", "brokers")
    assert "Dynamic configs for broker 1 are:" in both
    assert "Default configs for brokers in the cluster are:" in both
    for entity in (own, default):
        tools.configs("--alter", *entity, "--delete-config", name)
    gone = f"{name}=0 sensitive=false synonyms={{DEFAULT_CONFIG:{name}=0}}"
    tools.await_configs(gone, "--describe", *own, "--all")
    tools.until(lambda shown: name not in shown, "ConfigCommand", "--describe", *default)
    refused = tools.refuse("ConfigCommand", "--alter", *own, "--add-config", "num.partitions=5")
    assert "Cannot update these configs dynamically" in refused


@pytest.mark.parametrize(
    ("entity", "quota"),
    [
        (("--entity-type", "users", "--entity-name", "u"), "producer_byte_rate=1000"),
        (("--entity-type", "users", "--entity-default"), "request_percentage=50"),
        (("--entity-type", "clients", "--entity-name", "c"), "consumer_byte_rate=7"),
        (("--entity-type", "ips", "--entity-name", "127.0.0.9"), "connection_creation_rate=5"),
        (
            (
                *("--entity-type", "users", "--entity-name", "u"),
                *("--entity-type", "clients", "--entity-default"),
            ),
            "controller_mutation_rate=9",
        ),
    ],
)
def test_quotas_of_clients(tools: Tools, entity: tuple[str, ...], quota: str) -> None:
    key = quota.split("=")[0]
    tools.configs("--alter", *entity, "--add-config", quota)
    tools.await_configs(f"{quota}.0", "--describe", *entity)
    tools.configs("--alter", *entity, "--delete-config", key)
    tools.configs("--describe", *entity)


def test_configs_of_groups_client_metrics_and_loggers(tools: Tools, name: MakeName) -> None:
    group = ("--entity-type", "groups", "--entity-name", name("group"))
    tools.configs("--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    own = "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000"
    tools.await_configs(own, "--describe", *group)
    assert group[-1] in tools.configs("--describe", "--entity-type", "groups")
    tools.configs("--alter", *group, "--delete-config", "consumer.session.timeout.ms")
    too_long = ("--alter", *group, "--add-config", "consumer.session.timeout.ms=70000")
    assert "InvalidConfigurationException" in tools.refuse("ConfigCommand", *too_long)
    metrics = name("metrics")
    tools.run(
        "ClientMetricsCommand",
        *("--alter", "--name", metrics, "--metrics", "org.apache.kafka.producer."),
        *("--interval", "2000", "--match", "client_id=.*"),
    )
    tools.until(lambda listed: metrics in listed.split(), "ClientMetricsCommand", "--list")
    shown = tools.run("ClientMetricsCommand", "--describe", "--name", metrics)
    assert "interval.ms=2000" in shown
    assert "match=client_id=.*" in shown
    tools.run("ClientMetricsCommand", "--delete", "--name", metrics)
    tools.until(lambda listed: metrics not in listed.split(), "ClientMetricsCommand", "--list")
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    level = re.findall(r"  root=(\w+) ", tools.configs("--describe", *loggers))[0]
    tools.configs("--alter", *loggers, "--add-config", "root=ERROR")
    assert "  root=ERROR " in tools.configs("--describe", *loggers)
    tools.configs("--alter", *loggers, "--add-config", f"root={level}")


# Offsets, records, files.


@pytest.fixture
def filled(broker: Broker, topic: MakeTopic) -> str:
    """A topic whose partition 0 holds ten records, partition 1 none."""
    created = topic("orders", partitions=2)
    send(producer(broker.bootstrap), created, [(b"k", b"%d" % n) for n in range(10)], partition=0)
    return created


def test_offsets_at_every_kind_of_time(tools: Tools, filled: str) -> None:
    for when, expected in (
        ("-1", ["0:10", "1:0"]),
        ("latest", ["0:10", "1:0"]),
        ("-2", ["0:0", "1:0"]),
        ("earliest", ["0:0", "1:0"]),
        ("-4", ["0:0", "1:0"]),
        ("earliest-local", ["0:0", "1:0"]),
        ("-5", []),
        ("latest-tiered", []),
        ("1", ["0:0"]),
        ("99999999999999", []),
    ):
        printed = tools.run("GetOffsetShell", "--topic", filled, "--time", when).split()
        found = [line.removeprefix(f"{filled}:") for line in printed]
        assert found == expected, when
    for when in ("-3", "max-timestamp"):
        (line,) = tools.run(
            "GetOffsetShell", "--topic-partitions", f"{filled}:0", "--time", when
        ).split()
        assert 0 <= int(line.split(":")[2]) < 10
    assert "Could not match" in tools.refuse("GetOffsetShell", "--topic", f"{filled}-none")


def test_records_are_deleted(tools: Tools, filled: str, tmp_path: Path) -> None:
    for offset, said in ((4, "low_watermark: 4"), (99, "OffsetOutOfRangeException")):
        partitions = [{"topic": filled, "partition": 0, "offset": offset}]
        asked = written(tmp_path, {"version": 1, "partitions": partitions})
        assert said in tools.run("DeleteRecordsCommand", "--offset-json-file", asked)


def test_log_dirs(broker: Broker, tools: Tools, filled: str) -> None:
    printed = tools.run("LogDirsCommand", "--describe", "--topic-list", filled)
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    nodes = {each["broker"]: each["logDirs"][0] for each in json.loads(line)["brokers"]}
    assert len(nodes) == broker.node_count
    for node_id, directory in nodes.items():
        assert directory["logDir"] == str(broker.directory_of_node(node_id))
    sizes = {
        each["partition"]: each["size"]
        for directory in nodes.values()
        for each in directory["partitions"]
    }
    assert sizes == {f"{filled}-0": sizes[f"{filled}-0"], f"{filled}-1": 0}
    assert sizes[f"{filled}-0"] > 60


@pytest.mark.local_files("A cluster has none")
def test_files_are_dumped(broker: Broker, filled: str) -> None:
    directory = broker.partition_directory(filled, 0)
    log = str(directory / f"{0:020}.log")
    dumped = tool_box.run("DumpLogSegments", "--files", log, "--print-data-log", "--deep-iteration")
    assert len(re.findall(r"^\| offset: \d+ .* payload: \d$", dumped, re.MULTILINE)) == 10


# The cluster.


def test_the_cluster_and_its_quorum(broker: Broker, tools: Tools) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    cluster_id = tool_box.run("ClusterTool", "cluster-id", *server).split()[-1]
    assert len(cluster_id) == 22
    endpoints = tool_box.run("ClusterTool", "list-endpoints", *server)
    assert re.search(rf"^1 +127\.0\.0\.1 +{broker.port} +null +unfenced +broker", endpoints, re.M)
    status = tools.run("MetadataQuorumCommand", "describe", "--status")
    assert re.search(rf"^ClusterId: +{cluster_id}$", status, re.M)
    assert re.search(r"^LeaderId: +1$", status, re.M)
    assert re.search(r"^MaxFollowerLag: +0$", status, re.M)
    watermark = re.search(r"^HighWatermark: +(\d+)$", status, re.M)
    replication = tools.run("MetadataQuorumCommand", "describe", "--replication").splitlines()
    assert watermark is not None
    node, _, end, lag, _, _, role = replication[1].split()
    assert (node, lag, role) == ("1", "0", "Leader")
    assert int(end) >= int(watermark[1])


def test_features(tools: Tools) -> None:
    described = tools.run("FeatureCommand", "describe")
    for feature, level in (("transaction.version", 2), ("group.version", 1)):
        assert re.search(
            rf"^Feature: {feature}\s.*FinalizedVersionLevel: {level}\s", described, re.M
        )
    tools.run("FeatureCommand", "upgrade", "--feature", "transaction.version=2")
    refused = tools.refuse("FeatureCommand", "upgrade", "--feature", "nope=2")
    assert "Could not upgrade nope to 2." in refused


def test_nothing_that_kafka_serves_to_clients_is_missing_unsaid(
    both_brokers: tuple[Broker, Broker],
) -> None:
    """What is missing stands in docs/not_supported.md."""
    ours: dict[str, str] = {}
    kafkas: dict[str, str] = {}
    for found, broker in zip((ours, kafkas), both_brokers, strict=True):
        printed = tool_box.run("BrokerApiVersionsCommand", "--bootstrap-server", broker.bootstrap)
        found |= dict(re.findall(r"^\t(\w+)\(\d+\): (\d+(?: to \d+)?) \[", printed, re.M))
    differing = {name: versions for name, versions in ours.items() if kafkas.get(name) != versions}
    assert differing == {}
    assert kafkas.keys() - ours.keys() == {
        *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
        *("AlterShareGroupOffsets", "DeleteShareGroupOffsets", "DescribeShareGroupOffsets"),
        *("StreamsGroupHeartbeat", "StreamsGroupDescribe", "StreamsGroupTopologyDescriptionUpdate"),
        *("AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker", "UnregisterController"),
        *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
        *("DeleteShareGroupState", "ReadShareGroupStateSummary"),
    }


def test_replicas_stay_where_they_are(
    broker: Broker, tools: Tools, topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic("orders")
    tool = "reassign.ReassignPartitionsCommand"
    send(producer(broker.bootstrap), orders, [(None, b"in a directory")])
    leader = leader_of(broker.bootstrap, orders)
    partition: dict[str, object] = {"topic": orders, "partition": 0, "replicas": [leader]}
    for directories in (["any"], [str(broker.directory_of_node(leader))]):
        moved = {"version": 1, "partitions": [partition | {"log_dirs": directories}]}
        asked = ("--reassignment-json-file", written(tmp_path, moved))
        assert "Successfully started partition reassignment" in tools.run(tool, *asked, "--execute")
        assert f"Reassignment of partition {orders}-0 is completed." in tools.run(
            tool, *asked, "--verify"
        )
    assert "No partition reassignments found." in tools.run(tool, "--list")
    assert "None of the specified partition moves are active." in tools.run(
        tool, *asked, "--cancel"
    )
    partition["replicas"] = [8]
    asked = (
        "--reassignment-json-file",
        written(tmp_path, {"version": 1, "partitions": [partition]}),
    )
    assert "Unknown broker id 8" in tools.refuse(tool, *asked, "--execute")
    generate = written(tmp_path, {"version": 1, "topics": [{"topic": orders}]})
    proposed = tools.run(
        tool, "--generate", "--topics-to-move-json-file", generate, "--broker-list", "1"
    )
    assert '"replicas":[1]' in proposed


def test_leaders_lead_already(tools: Tools, topic: MakeTopic) -> None:
    orders = topic("orders")
    tools.run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    for kind in ("preferred", "unclean"):
        of_one = ("--election-type", kind, "--topic", orders, "--partition", "0")
        assert f"Valid replica already elected for partitions {orders}-0" in tools.run(
            "LeaderElectionCommand", *of_one
        )
    none = ("--election-type", "preferred", "--topic", f"{orders}-none", "--partition", "0")
    assert "UnknownTopicOrPartitionException" in tools.refuse("LeaderElectionCommand", *none)


def test_there_is_no_authorizer(tools: Tools) -> None:
    rule = ("--allow-principal", "User:u", "--operation", "Read", "--topic", "t")
    for asked in (("--list",), ("--add", *rule), ("--remove", "--topic", "t", "--force")):
        refused = tools.refuse("AclCommand", *asked)
        assert "SecurityDisabledException" in refused


# Records from and to the console.


def test_the_consoles_formatters(tools: Tools, topic: MakeTopic) -> None:
    orders = topic("orders")
    tools.run(
        "ConsoleProducer",
        *("--topic", orders, "--compression-codec", "lz4"),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        *("--reader-property", "parse.headers=true"),
        stdin="h:1\ta:one\nh:2\tb:two\n",
    )
    printed = tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", orders, "--from-beginning", "--max-messages", "2"),
        *("--isolation-level", "read_committed"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
        *("--formatter-property", "print.partition=true"),
        *("--formatter-property", "print.offset=true"),
    )
    assert printed.splitlines() == [
        "Partition:0\tOffset:0\th:1\ta\tone",
        "Partition:0\tOffset:1\th:2\tb\ttwo",
    ]
    part = ("--partition", "0", "--offset", "1", "--max-messages", "1")
    assert tools.run("consumer.ConsoleConsumer", "--topic", orders, *part) == "two\n"


def test_the_coordinators_records_have_formatters(
    tools: Tools, topic: MakeTopic, name: MakeName
) -> None:
    orders, group, producing = topic("orders"), name("group"), name("txn")
    tools.run(
        "ProducerPerformance",
        *("--topic", orders, "--num-records", "10", "--record-size", "10", "--throughput", "-1"),
        *("--transactional-id", producing, "--transaction-duration-ms", "50"),
    )
    tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", orders, "--from-beginning", "--max-messages", "10", "--group", group),
    )
    for internal, formatter, told in (
        ("__consumer_offsets", "OffsetsMessageFormatter", group),
        ("__transaction_state", "TransactionLogMessageFormatter", producing),
    ):
        # The tool knows no end, only patience: in time it has read what is asked for.
        tools.await_printed(
            f'"{told}"',
            "consumer.ConsoleConsumer",
            *("--topic", internal, "--from-beginning", "--timeout-ms", "1500"),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        )
