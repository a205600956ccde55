"""The frame of all examples: a broker of their own, lines of progress, and a verdict."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is
from confluent_kafka.cimpl import NewTopic

from magnetar.testing import BrokerProcess, start_broker

_CALL_TIMEOUT_S = 30.0
_GAUGE_TIMEOUT_S = 5.0
#: The exit status of a process that SIGTERM has ended.
_TERMINATED = 143
#: The default place of pictures, below the directory in which an example is started.
PICTURES = Path("build") / "pictures"


class Failed(Exception):
    """The example did not end, or its check found something, which the message names."""


class Report:
    """Prints lines of progress, each with the seconds since the example began."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{self.elapsed_s():5.1f} s  {line}", flush=True)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_at


class Setting(NamedTuple):
    """The surroundings of a running example."""

    broker: BrokerProcess
    #: For checkpoints, journals and Parquet; deleted at the end.
    directory: Path
    report: Report
    #: None: no pictures are drawn.
    pictures: Path | None = None
    #: Spark's format: `magnetar` writes exactly once; Spark's own, `kafka`, writes at least
    #: once, which the check at the end of an example may find.
    sink: str = "magnetar"


#: An example. Returns its findings as lines to print; raises Failed.
Example = Callable[[Setting], Sequence[str]]


def run(name: str, purpose: str | None, example: Example) -> int:
    """Run an example from its command line; return the process's exit status."""
    parser = argparse.ArgumentParser(prog=f"make {name}", description=purpose)
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="where PNG files go")
    parser.add_argument("--sink", choices=("magnetar", "kafka"), default="magnetar")
    arguments = parser.parse_args()
    report = Report()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # What was started is ended.
    with (
        tempfile.TemporaryDirectory(prefix=f"magnetar-{name}-") as directory,
        start_broker(Path(directory) / "data") as broker,
    ):
        report(f"magnetar serves {broker.bootstrap_servers}")
        setting = Setting(broker, Path(directory), report, arguments.pictures, arguments.sink)
        try:
            found = example(setting)
        except Failed as error:
            print(f"\nFAILED: {error}", flush=True)
            return 1
    report("done")
    print("", *found, sep="\n")
    return 0


def create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Create a topic and return when it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(_CALL_TIMEOUT_S)


class Ends(NamedTuple):
    """The ends of a topic, in offsets summed over its partitions."""

    #: The end of the records on disk.
    written: int
    #: The end for read_committed readers, which open transactions hold back.
    stable: int


class Gauge:
    """Asks how far a topic reaches. All partitions are asked in one request, so that what becomes
    visible in one moment is seen in one moment.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
        }
        self._admin = AdminClient(self._settings)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        self._latest = {TopicPartition(topic, each): latest for each in range(partitions)}

    def ends(self) -> Ends:
        """Return the ends now. Raises KafkaException if the broker is away."""
        try:
            stable = self._sum(IsolationLevel.READ_COMMITTED)
            return Ends(written=self._sum(IsolationLevel.READ_UNCOMMITTED), stable=stable)
        except KafkaException:
            # The old client would keep asking with the leader epoch from before a restart.
            self._admin = AdminClient(self._settings)
            raise

    def ends_when_back(self) -> Ends:
        """Return the ends as soon as a broker answers. Raises KafkaException after a while."""
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            try:
                return self.ends()
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _sum(self, isolation: IsolationLevel) -> int:
        answers = self._admin.list_offsets(
            self._latest, isolation_level=isolation, request_timeout=_GAUGE_TIMEOUT_S
        )
        return sum(answer.result(_CALL_TIMEOUT_S).offset for answer in answers.values())


def main_of(name: str, purpose: str | None, example: Example) -> None:
    """End the process with the example's exit status."""
    sys.exit(run(name, purpose, example))
