"""Kafka Connect in distributed mode: a file into a topic, exactly once, and out into a file again.

Its workers have a group protocol of their own (`connect`, sessioned), three compacted topics, a
transactional producer per source task, and fence the ones before by InitProducerId.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT
from compat_tests.java import fast_start
from tools.ports import free_port
from tools.reference_kafka import OLDER, java_command

LINES = "lines"
#: A worker ends within 12 s, on a busy machine too. Twice in a few hundred runs one took more than
#: a minute, beside Apache Kafka; what it waited for is not known, so a slow one tells its threads.
_SLOW_STOP_S = 40.0
_STOP_S_MAX = 180.0
WORKER = {
    "group.id": "workers",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "offset.storage.partitions": "3",
    "offset.flush.interval.ms": "200",
    "exactly.once.source.support": "enabled",
    "consumer.isolation.level": "read_committed",
    # Its connectors say that they are some, so no worker has to look at every class of every jar.
    "plugin.discovery": "service_load",
}


class Worker:
    """One worker process of Connect, of the release before the reference, asked over HTTP."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self._port = free_port()
        self._output = directory / "worker.log"
        properties = directory / "worker.properties"
        listener = f"http://127.0.0.1:{self._port}"
        settings = {**WORKER, "bootstrap.servers": broker.bootstrap, "listeners": listener}
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2-quiet.properties')}"
        options = (*fast_start(OLDER), quiet)
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                java_command(main, str(properties), options=options, clients=OLDER),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def configure(self, connector: str, settings: dict[str, str]) -> None:
        """Create the connector, as soon as the worker is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._call("PUT", f"/connectors/{connector}/config", settings)
                return
            except (urllib.error.URLError, ConnectionError) as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"no connector {connector}: {error}\n{self.output()}")
                time.sleep(0.1)

    def output(self) -> str:
        return self._output.read_text(errors="replace")[-6000:]

    def end(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        try:
            self._process.wait(_SLOW_STOP_S)
        except subprocess.TimeoutExpired:
            # The virtual machine writes what its threads wait for to the output.
            os.killpg(self._process.pid, signal.SIGQUIT)
            try:
                self._process.wait(_STOP_S_MAX - _SLOW_STOP_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"the worker does not end:\n{self._output.read_text()[-60_000:]}")

    def _call(self, method: str, path: str, body: dict[str, str]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


@contextmanager
def worker(broker: Broker, directory: Path) -> Iterator[Worker]:
    """Run a worker and end it in order."""
    running = Worker(broker, directory)
    try:
        yield running
        running.end(signal.SIGTERM)
    finally:
        running.end(signal.SIGKILL)


def append(path: Path, first: int, end: int) -> None:
    with path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(first, end))


def await_lines(path: Path, count: int, running: Worker) -> None:
    deadline = time.monotonic() + 2 * TIMEOUT_S
    wanted = {f"line {number}" for number in range(count)}
    while not path.exists() or set(path.read_text().splitlines()) != wanted:
        if time.monotonic() > deadline:
            pytest.fail(f"not all of {count} lines came through:\n{running.output()}")
        time.sleep(0.05)


def test_connect_carries_a_file_through_a_topic_exactly_once(
    own_broker: Broker, tmp_path: Path
) -> None:
    """The worker ends and starts again; the broker is killed under it."""
    broker, source, sink = own_broker, tmp_path / "source.txt", tmp_path / "sink.txt"
    create_topic(broker.bootstrap, LINES)
    append(source, 0, 200)
    classes = "org.apache.kafka.connect.file.FileStream"
    with worker(broker, tmp_path) as running:
        configured = {
            "connector.class": f"{classes}SourceConnector",
            "tasks.max": "1",
            "topic": LINES,
        }
        running.configure("in", {**configured, "file": str(source)})
        configured = {
            "connector.class": f"{classes}SinkConnector",
            "tasks.max": "1",
            "topics": LINES,
        }
        running.configure("out", {**configured, "file": str(sink)})
        await_lines(sink, 200, running)
    append(source, 200, 400)
    with worker(broker, tmp_path) as running:
        await_lines(sink, 400, running)
        append(source, 400, 500)
        broker.restart(clean=False)
        append(source, 500, 600)
        await_lines(sink, 600, running)
    values = [read.value for read in CONFLUENT.consume(broker.bootstrap, LINES)]
    assert values == [b"line %d" % number for number in range(600)]
