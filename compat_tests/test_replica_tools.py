"""Kafka's tools that read topics as replicas and consumers do, and say what they saw."""

from __future__ import annotations

import os
import re
import signal
import subprocess

from compat_tests import java, tool_box
from compat_tests.brokers import Broker
from compat_tests.clients import CONFLUENT
from compat_tests.conftest import MakeTopic


def test_the_replicas_of_a_topic_agree(broker: Broker, topic: MakeTopic) -> None:
    """kafka-replica-verification reads every replica, and goes on until it is stopped."""
    orders = topic("orders")
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"%d" % n) for n in range(10)])
    arguments = ("--broker-list", broker.bootstrap, "--topics-include", orders)
    verifying = subprocess.Popen(
        java.command("ReplicaVerificationTool", *arguments, "--report-interval-ms", "200"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert verifying.stdout is not None
        agreed = f"max lag is 0 for partition {orders}-0 at offset 10 among 1 partitions"
        assert any(agreed in report for report in verifying.stdout), "it ended by itself"
    finally:
        os.killpg(verifying.pid, signal.SIGKILL)
        verifying.communicate()


def test_consumer_performance_reads_what_there_is(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", partitions=2)
    CONFLUENT.produce(broker.bootstrap, orders, [(b"k", b"x" * 100)] * 1000)
    printed = tool_box.run(
        "ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", orders, "--num-records", "1000"),
        # How long it waits for the next record.
        *("--timeout", "60000"),
    )
    read = re.search(r"^[^s].*:\d+, [^,]*, [^,]*, [^,]*, (\d+),", printed, re.MULTILINE)
    assert read is not None, printed
    assert int(read[1]) == 1000
