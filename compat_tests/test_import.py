"""A stopped Kafka's topics, groups and transactions are imported, and the same clients go on.

The clients live through the change: magnetar is served at the address that was Kafka's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests import confluent_client, raw
from compat_tests.admin import create_topic
from compat_tests.brokers import MAGNETAR, Broker, make_broker, running
from compat_tests.client import TIMEOUT_S, Pair
from compat_tests.clients import CONFLUENT
from compat_tests.offsets import committed_offset

pytestmark = pytest.mark.local_files("Into a cluster: test_cluster_import")
PLAIN: list[Pair] = [(b"k%d" % n, b"plain %d" % n) for n in range(50)]
COMPACTED: list[Pair] = [(b"k%d" % (n % 5), b"latest %d" % n) for n in range(20)]
BIG: list[Pair] = [(None, b"x" * 300_000)] * 8


class Moved(NamedTuple):
    """A Kafka that was stopped, the magnetar that has its data, and who was in the middle."""

    kafka: Broker
    magnetar: Broker
    reports: dict[str, Any]
    #: In the middle of a transaction of one record and one offset, 7 of group "mover".
    resuming: Producer
    #: Like `resuming`, without an offset. Another producer takes over its transactional id.
    zombie: Producer
    consumer: Consumer


def magnetar(*arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [str(MAGNETAR), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == exit_code, ended.stdout + ended.stderr
    return ended


def begin(bootstrap: str, transactional_id: str, value: bytes) -> Producer:
    producer = confluent_client.producer(bootstrap, transactional_id=transactional_id)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    confluent_client.send(producer, "orders", [(None, value)])
    return producer


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    # So that indexes of few records have entries.
    settings = {"log.index.interval.bytes": "100"}
    kafka = make_broker("kafka", tmp_path_factory.mktemp("before"), settings)
    after = make_broker("magnetar", tmp_path_factory.mktemp("after"))
    after.port = kafka.port
    # Other counts than Kafka's: those found must win.
    after.settings |= {
        "offsets.topic.num.partitions": "7",
        "transaction.state.log.num.partitions": "7",
    }
    with running(kafka):
        moved = _move(kafka, after)
        with running(after):
            yield moved


def _move(kafka: Broker, after: Broker) -> Moved:
    bootstrap = kafka.bootstrap
    create_topic(bootstrap, "orders", 2, {"retention.ms": "86400000", "segment.bytes": "1048576"})
    create_topic(bootstrap, "latest", 1, {"cleanup.policy": "compact"})
    CONFLUENT.produce(bootstrap, "orders", PLAIN)
    CONFLUENT.produce(bootstrap, "latest", COMPACTED)
    for value, commit in ((b"committed", True), (b"aborted", False)):
        CONFLUENT.produce(
            bootstrap,
            "orders",
            [(None, value)],
            mode="transactional",
            transactional_id="ended",
            commit=commit,
        )
    confluent_client.send(confluent_client.producer(bootstrap), "orders", BIG, partition=1)
    consumer = confluent_client.consumer(bootstrap, "readers")
    consumer.subscribe(["orders"])
    seen = 0
    while seen < 10:
        seen += len(consumer.consume(10 - seen, 1.0))
    consumer.commit(offsets=[TopicPartition("orders", 0, 10)], asynchronous=False)
    resuming = begin(bootstrap, "resuming", b"resumed")
    metadata = confluent_client.consumer(bootstrap, "mover").consumer_group_metadata()
    resuming.send_offsets_to_transaction([TopicPartition("orders", 0, 7)], metadata, TIMEOUT_S)
    zombie = begin(bootstrap, "zombie", b"of the zombie")
    reports: dict[str, Any] = {}
    source, target = str(kafka.log_directory), str(after.log_directory)
    command = ("import", source, "--data-dir", target)
    reports["running"] = magnetar(*command, exit_code=1).stderr
    kafka.stop()
    reports["without coordinators"] = magnetar(*command, "--except", "__*", exit_code=1).stderr
    (reports["dry run"],) = json.loads(magnetar(*command, "--dry-run", "--json").stdout)
    reports["dry run left"] = sorted(path.name for path in after.log_directory.iterdir())
    (reports["import"],) = json.loads(magnetar(*command, "--link", "--json").stdout)
    (reports["again"],) = json.loads(magnetar(*command, "--json").stdout)
    return Moved(kafka, after, reports, resuming, zombie, consumer)


def test_a_running_broker_is_not_imported(moved: Moved) -> None:
    assert "a broker is running on" in moved.reports["running"]


def test_open_transactions_are_refused_by_name_without_their_coordinator(moved: Moved) -> None:
    refusal = moved.reports["without coordinators"]
    assert "nothing was imported" in refusal
    assert "orders-0: the transaction of producer" in refusal
    assert "--abort-open" in refusal


def test_a_dry_run_changes_nothing_and_says_the_same(moved: Moved) -> None:
    assert moved.reports["dry run left"] == [".lock"]
    planned = {**moved.reports["dry run"], "dry_run": False}
    assert planned == moved.reports["import"]


def test_importing_again_changes_nothing(moved: Moved) -> None:
    again = moved.reports["again"]
    assert again["topics"] == []
    assert "orders" in again["already_there"]


def test_topics_keep_ids_settings_and_counts(moved: Moved) -> None:
    bootstrap = moved.magnetar.bootstrap
    described = json.loads(
        magnetar("topics", "list", "--internal", "--json", "-b", bootstrap).stdout
    )
    counts = {topic["topic"]: topic["partitions"] for topic in described}
    assert counts["orders"] == 2
    assert counts["__consumer_offsets"] == counts["__transaction_state"] == 4
    for topic in described:
        path = moved.kafka.partition_directory(topic["topic"], 0) / "partition.metadata"
        assert f"topic_id: {topic['topic_id']}" in path.read_text()
    of = ("--topic", "orders", "-b", bootstrap)
    assert magnetar("configs", "get", "retention.ms", *of).stdout == "86400000\n"
    latest = magnetar("configs", "get", "cleanup.policy", "--topic", "latest", "-b", bootstrap)
    assert latest.stdout == "compact\n"


def test_records_keep_their_offsets_and_the_consumer_goes_on(moved: Moved) -> None:
    bootstrap = moved.magnetar.bootstrap
    assert [read.value for read in CONFLUENT.consume(bootstrap, "latest")] == [
        value for _, value in COMPACTED
    ]
    assert committed_offset(bootstrap, "readers", "orders") == 10
    uncommitted = CONFLUENT.consume(bootstrap, "orders", "read_uncommitted")
    values = [value for _, value in PLAIN] + [b"committed", b"aborted"]
    assert [read.value for read in uncommitted][: len(values)] == values
    assert [read.offset for read in uncommitted][: len(PLAIN)] == list(range(len(PLAIN)))
    # The consumer that Kafka knew reads on where it stopped, as a member of the same group.
    read: set[tuple[int | None, int | None]] = set()
    while not {(0, offset) for offset in range(10, 50)} <= read:
        read |= {(each.partition(), each.offset()) for each in moved.consumer.consume(100, 1.0)}
    moved.consumer.commit(offsets=[TopicPartition("orders", 0, 50)], asynchronous=False)
    assert committed_offset(bootstrap, "readers", "orders") == 50


def test_open_transactions_are_resumed_or_their_producer_fenced(moved: Moved) -> None:
    bootstrap = moved.magnetar.bootstrap
    _resume(moved, bootstrap)
    # Afterwards: a reader sees nothing beyond what is still open.
    _fence(moved, bootstrap)


def _resume(moved: Moved, bootstrap: str) -> None:
    assert b"resumed" not in {each.value for each in CONFLUENT.consume(bootstrap, "orders")}
    confluent_client.send(moved.resuming, "orders", [(None, b"and more")])
    moved.resuming.commit_transaction(TIMEOUT_S)
    # The zombie's transaction, later in the log, does not hold these back.
    values = [each.value for each in CONFLUENT.consume(bootstrap, "orders")]
    assert b"resumed" in values
    assert committed_offset(bootstrap, "mover", "orders") == 7


def _fence(moved: Moved, bootstrap: str) -> None:
    successor = begin(bootstrap, "zombie", b"of the successor")
    successor.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as fenced:
        moved.zombie.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    values = [each.value for each in CONFLUENT.consume(bootstrap, "orders")]
    assert b"of the successor" in values
    assert b"of the zombie" not in values


def test_producer_ids_and_epochs_begin_above_those_found(moved: Moved) -> None:
    with raw.Connection(moved.magnetar.bootstrap) as connection:
        fresh = connection.producer("fresh")
    assert fresh.producer_id >= moved.reports["import"]["next_producer_id"] > 0
    # An epoch is written down with the first batch of it.
    CONFLUENT.produce(moved.magnetar.bootstrap, "orders", [(None, b"of a later epoch")])
    checkpoint = moved.magnetar.partition_directory("orders", 0) / "leader-epoch-checkpoint"
    epochs = [int(line.split()[0]) for line in checkpoint.read_text().splitlines()[2:]]
    assert len(epochs) > 1 and epochs == sorted(set(epochs)), "a leader epoch of its own"


def test_a_dump_reads_all_of_kafkas_files(moved: Moved) -> None:
    """Exit code 0: nothing is damaged. The internal topics are decoded, the metadata log too."""
    dumped = magnetar("dump", str(moved.kafka.log_directory), "--json").stdout
    lines = [json.loads(line) for line in dumped.splitlines()]
    assert {"batch", "index", "timeindex", "producer", "aborted", "checkpoint"} <= {
        line["kind"] for line in lines
    }
    records = [line for line in lines if line["kind"] == "record"]
    assert records and all("decoded" in line for line in records)
    types = {line["decoded"]["type"] for line in records}
    assert {"transaction", "OffsetCommit", "GroupMetadata", "TopicRecord"} <= types
    assert {"resuming", "zombie", "ended"} <= {
        line["decoded"].get("transactional_id") for line in records
    }


def test_kafkas_own_files_are_as_they_were(moved: Moved) -> None:
    """Closed segments are linked, and neither they nor the others are written to."""
    source = moved.kafka.partition_directory("orders", 1)
    target = moved.magnetar.partition_directory("orders", 1)
    first, *_, last = sorted(path.name for path in source.glob("*.log"))
    assert (source / first).samefile(target / first)
    assert not (source / last).samefile(target / last)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    confluent_client.send(
        confluent_client.producer(moved.magnetar.bootstrap), "orders", BIG, partition=1
    )
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
