"""Operators' tools for transactions: Kafka's own TransactionsCommand, and `magnetar transactions`.

Both must work on both brokers. What hangs can only be made on Apache Kafka, with its verification
of partitions switched off; magnetar takes no data that its coordinator does not know of.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from compat_tests import command_line, tool_box
from compat_tests.brokers import MAGNETAR, Broker, make_broker, running
from compat_tests.client import TIMEOUT_S, TRANSACTION_TIMEOUT_MS
from compat_tests.conftest import MakeName, MakeTopic, StartBroker
from compat_tests.raw import Connection, Identity, batch
from compat_tests.secured import STANDARD_AUTHORIZER

_HOUR_MS = 3_600_000
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def transactions_command(broker: Broker, *arguments: str) -> list[dict[str, str]]:
    """Run Kafka's tool and return the rows of its table."""
    output = tool_box.run("TransactionsCommand", "--bootstrap-server", broker.bootstrap, *arguments)
    rows = [[cell.strip() for cell in line.split("\t")[:-1]] for line in output.splitlines()]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def magnetar_transactions(broker: Broker, *arguments: str) -> Any:
    """Run our tool and return what it prints as JSON."""
    command = [str(MAGNETAR), "transactions", *arguments]
    ended = subprocess.run(
        [*command, "--json", "--bootstrap-server", broker.bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def begin(connection: Connection, topic: str, transactional_id: str) -> Identity:
    """Leave a transaction open, with three records in partition 0."""
    identity = connection.producer(transactional_id)
    connection.write_in_transaction(identity, topic, b"a", b"b", b"c")
    return identity


def test_kafkas_list_shows_ids_with_state_and_filters_them(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, base = topic("orders"), name("txn")
    with Connection(broker.bootstrap) as connection:
        connection.producer(f"{base}-empty")
        ongoing = begin(connection, orders, f"{base}-ongoing")
        for outcome in ("commit", "abort"):
            identity = begin(connection, orders, f"{base}-{outcome}")
            assert connection.end(identity, commit=outcome == "commit").error_code == 0
    pattern = ("--transactional-id-pattern", f"{base}-.*")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        rows = transactions_command(broker, "list", *pattern)
        states = {
            row["TransactionalId"].removeprefix(f"{base}-"): row["TransactionState"] for row in rows
        }
        # Kafka ends transactions after it has answered.
        if not any("Prepare" in state for state in states.values()) or time.monotonic() > deadline:
            break
    assert states == {
        "empty": "Empty",
        "ongoing": "Ongoing",
        "commit": "CompleteCommit",
        "abort": "CompleteAbort",
    }
    assert str(ongoing.producer_id) in {row["ProducerId"] for row in rows}
    (row,) = transactions_command(broker, "list", *pattern, "--duration-filter", str(_HOUR_MS))
    assert row["TransactionState"] == "Empty"  # never begun, so since the beginning of time


def test_kafkas_describe_shows_a_transaction(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, transactional_id = topic("orders", partitions=2), name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = begin(connection, orders, transactional_id)
        assert connection.add_partitions(identity, orders, [1]) == [0]
    (row,) = transactions_command(broker, "describe", "--transactional-id", transactional_id)
    assert row["ProducerId"] == str(identity.producer_id)
    assert row["ProducerEpoch"] == "0"
    assert row["TransactionState"] == "Ongoing"
    assert row["TransactionTimeoutMs"] == str(TRANSACTION_TIMEOUT_MS)
    assert abs(int(row["CurrentTransactionStartTimeMs"]) - time.time() * 1000) < _HOUR_MS
    assert set(row["TopicPartitions"].split(",")) == {f"{orders}-0", f"{orders}-1"}


def test_kafkas_describe_says_that_an_id_is_unknown(broker: Broker, name: MakeName) -> None:
    with pytest.raises(AssertionError, match="the ID could not be found"):
        transactions_command(broker, "describe", "--transactional-id", name("unknown"))


def test_kafkas_tool_aborts_what_is_open_in_a_partition(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    place = ("--topic", orders, "--partition", "0")
    with Connection(broker.bootstrap) as connection:
        identity = begin(connection, orders, name("txn"))
        (open_one,) = transactions_command(broker, "describe-producers", *place)
        assert open_one == {
            "ProducerId": str(identity.producer_id),
            "ProducerEpoch": "0",
            "LatestCoordinatorEpoch": "-1",
            "LastSequence": "2",
            "LastTimestamp": open_one["LastTimestamp"],
            "CurrentTransactionStartOffset": "0",
        }
        # Its coordinator knows of it, so it does not hang.
        assert not transactions_command(
            broker, "find-hanging", "--topic", orders, "--max-transaction-timeout", "0"
        )
        assert connection.fetch(orders, 0, isolation=1).last_stable_offset == 0
        assert not transactions_command(broker, "abort", *place, "--start-offset", "0")
        seen = connection.fetch(orders, 0, isolation=1)
        assert seen.last_stable_offset == seen.high_watermark == 4
        assert [each.first_offset for each in seen.aborted_transactions] == [0]
    (closed,) = transactions_command(broker, "describe-producers", *place)
    assert closed["CurrentTransactionStartOffset"] == "None"


def test_kafkas_tool_aborts_data_of_transaction_version_2(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    """Markers of that version have a later epoch than their data; the tool's has the same."""
    orders, transactional_id = topic("orders"), name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(transactional_id)
        records = batch([b"a"], identity, 0)
        added = connection.produce(orders, records, transactional_id=transactional_id, version=12)
        assert added.error_code == 0
        place = ("--topic", orders, "--partition", "0", "--start-offset", "0")
        assert not transactions_command(broker, "abort", *place)
        seen = connection.fetch(orders, 0, isolation=1)
        assert seen.last_stable_offset == seen.high_watermark == 2


@pytest.mark.magnetar_only("test_authorization compares with Kafka whom it lets write markers")
def test_kafkas_tool_aborts_on_every_node_for_whom_an_acl_allows_it(
    tmp_path: Path, topic_on: MakeTopic
) -> None:
    """The marker goes to the partition's leader, as a peer's does, but is a client's."""
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{_MODULE} required user_ada="pw" user_bob="pw";'
        ),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    with running(make_broker("magnetar", tmp_path / "data", settings, ["SASL_PLAINTEXT"])) as own:
        orders = topic_on(own, "orders", partitions=own.node_count)
        readers = ("--allow-principal", "User:ada", "--allow-principal", "User:bob")
        command_line.run(own, "acls", "add", *readers, "--operation", "READ", "--topic", orders)
        allowed = ("--allow-principal", "User:ada", "--operation", "ALTER", "--cluster")
        command_line.run(own, "acls", "add", *allowed)
        for partition in range(own.node_count):
            with Connection(own.bootstrap) as connection:
                transactional_id = f"txn-{partition}"
                identity = connection.producer(transactional_id)
                assert connection.add_partitions(identity, orders, [partition]) == [0]
                records = batch([b"a"], identity, 0)
                written = connection.produce(
                    orders, records, transactional_id=transactional_id, partition=partition
                )
                assert written.error_code == 0
            place = ("--topic", orders, "--partition", str(partition), "--start-offset", "0")
            with pytest.raises(AssertionError, match="cluster authorization error"):
                abort_as(own, "bob", tmp_path, *place)
            abort_as(own, "ada", tmp_path, *place)
            (seen,) = transactions_command(own, "describe-producers", *place[:4])
            assert seen["CurrentTransactionStartOffset"] == "None"


def abort_as(broker: Broker, user: str, directory: Path, *place: str) -> None:
    """Let Kafka's tool abort what is open there, logged in as `user`."""
    login = directory / f"{user}.properties"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_MODULE} required username="{user}" password="pw";\n'
    )
    asked = ("--bootstrap-server", broker.address("SASL_PLAINTEXT"), "--command-config", str(login))
    tool_box.run("TransactionsCommand", *asked, "abort", *place)


def test_ours_lists_and_describes_what_is_open_and_what_it_holds_back(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, transactional_id = topic("orders"), name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = begin(connection, orders, transactional_id)
        connection.produce(orders, batch([b"d", b"e"]))
    (listed,) = magnetar_transactions(broker, "list", "--open", "--pattern", transactional_id)
    (described,) = magnetar_transactions(broker, "describe", transactional_id)
    assert listed["open_for_ms"] <= described.pop("open_for_ms")
    assert listed.items() >= described.items()
    assert described["state"] == "Ongoing"
    assert described["producer_id"] == identity.producer_id
    assert described["producer_epoch"] == identity.producer_epoch
    assert described["partitions"] == [{"topic": orders, "partition": 0}]
    (open_one,) = described["open_in"]
    assert (open_one["start_offset"], open_one["records_held_back"]) == (0, 5)
    if broker.kind == "magnetar":
        assert described["txn_id"].endswith(f"-{identity.producer_id:016x}")
    else:
        assert described["txn_id"] is None


def test_ours_aborts_a_transaction_and_fences_its_producer(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, transactional_id = topic("orders"), name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = begin(connection, orders, transactional_id)
        (aborted,) = magnetar_transactions(broker, "abort", transactional_id)
        assert aborted["producer_id"] == identity.producer_id
        seen = connection.fetch(orders, 0, isolation=1)
        assert seen.last_stable_offset == seen.high_watermark == 4
        assert connection.end(identity, commit=True).error_code in (47, 90)  # fenced


def test_kafka_python_lists_and_describes(broker: Broker, topic: MakeTopic, name: MakeName) -> None:
    """Its reader, unlike Java's, is Python: it too must skip magnetar's tagged field."""
    orders, transactional_id = topic("orders"), name("txn")
    with Connection(broker.bootstrap) as connection:
        identity = begin(connection, orders, transactional_id)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    listed = {
        each.transactional_id for found in admin.list_transactions().values() for each in found
    }
    described = admin.describe_transactions([transactional_id])[transactional_id]
    admin.close()
    assert transactional_id in listed
    assert described.state.value == "Ongoing"
    assert described.producer_id == identity.producer_id
    assert {(each.topic, each.partition) for each in described.topic_partitions} == {(orders, 0)}


def test_ours_finds_what_hangs_in_kafka_and_aborts_it(
    start_broker: StartBroker, topic_on: MakeTopic
) -> None:
    kafka = start_broker("kafka", {"transaction.partition.verification.enable": "false"})
    orders = topic_on(kafka, "orders", partitions=2)
    then_ms = int(time.time() * 1000) - _HOUR_MS
    with Connection(kafka.bootstrap) as connection:
        identity = connection.producer("forgotten")
        records = batch([b"a"], identity, 0, timestamp_ms=then_ms)
        connection.produce(orders, records, transactional_id="forgotten", partition=1)
        (hanging,) = magnetar_transactions(kafka, "hanging")
        assert (hanging["topic"], hanging["partition"]) == (orders, 1)
        assert (hanging["start_offset"], hanging["producer_id"]) == (0, identity.producer_id)
        assert not magnetar_transactions(kafka, "hanging", "--max-transaction-timeout", "2h")
        magnetar_transactions(
            kafka, "abort", "--topic", orders, "--partition", "1", "--start-offset", "0"
        )
        assert not magnetar_transactions(kafka, "hanging")
