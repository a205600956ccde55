"""The programs that Kafka's own system tests run, and judge a cluster by."""

from __future__ import annotations

import json

import pytest

from compat_tests import tool_box
from compat_tests.admin import delete_topic
from compat_tests.brokers import Broker
from compat_tests.clients import CONFLUENT
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.transaction_ends import await_markers

COUNT = 500
SUPPORTED = (
    *("offsets-for-times", "cluster-id", "create-topics", "describe-acls"),
    *("describe-configs", "idempotent-producer"),
)


@pytest.mark.parametrize(
    "reading",
    [("--input-partition", "0"), ("--input-partition", "-1", "--group-mode")],
    ids=["assigned", "subscribed"],
)
@pytest.mark.parametrize("fencing", [(), ("--use-group-metadata",)], ids=["by-id", "by-group"])
def test_the_transactional_copier_copies_exactly_once(
    broker: Broker,
    topic: MakeTopic,
    name: MakeName,
    reading: tuple[str, ...],
    fencing: tuple[str, ...],
) -> None:
    """It consumes, produces and commits offsets in transactions, and aborts one in three."""
    source, target = topic("source"), topic("target")
    send(producer(broker.bootstrap), source, [(None, b"%d" % n) for n in range(COUNT)])
    said = tool_box.run(
        "TransactionalMessageCopier",
        *("--broker-list", broker.bootstrap, "--transactional-id", name("copier")),
        *("--input-topic", source, "--output-topic", target, "--consumer-group", name("group")),
        *("--transaction-size", "50", "--enable-random-aborts", *reading, *fencing),
    )
    assert json.loads(said.splitlines()[-1])["remaining"] == 0
    await_markers(broker, target)
    copied = CONFLUENT.consume(broker.bootstrap, target)
    assert [int(read.value or b"") for read in copied] == list(range(COUNT))


def test_kafkas_client_finds_what_it_knows(broker: Broker, name: MakeName) -> None:
    """Offsets for times, cluster id, large records, topics, configs, ACLs, idempotence."""
    options = [word for each in SUPPORTED for word in (f"--{each}-supported", "true")]
    said = tool_box.run(
        "ClientCompatibilityTest",
        *("--bootstrap-server", broker.bootstrap, "--topic", name("checked")),
        *("--num-cluster-nodes", str(broker.node_count)),
        *("--expect-record-too-large-exception", "false"),
        *options,
    )
    delete_topic(broker.bootstrap, "newtopic")  # It makes one, and minds one that is there.
    assert said.splitlines()[-1] == "SUCCESS."
