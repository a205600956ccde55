"""Where the time of one transaction goes: each request as a frame, timed; no client library.

    python -m benchmarks.transaction_frames [--broker kafka] [--rounds N] [--durability page-cache]

One producer, one record, one partition, each request sent when the answer before it is here. Over
version 1 AddPartitionsToTxn, Produce, EndTxn; over version 2 Produce, EndTxn. The broker's CPU for
a transaction is the figure to compare where the machine is busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

from benchmarks.frames import (
    Frames,
    Identity,
    add_partitions,
    end_request,
    eventually,
    new_producers,
    produce_request,
    produced,
)
from benchmarks.subjects import cpu_seconds, running
from compat_tests.admin import create_topic
from wire.messages.end_txn import EndTxnResponse
from wire.messages.produce import ProduceResponse

TOPIC = "transactions"
_VALUE = b"x" * 100

Steps = dict[str, list[float]]


class _Clock:
    """Collects how long each step took, in ms."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    def time(self, step: str, work: Callable[[], None]) -> None:
        began_at = time.perf_counter()
        work()
        self.steps.setdefault(step, []).append((time.perf_counter() - began_at) * 1000)


class _Producer:
    """One transactional producer of either version."""

    def __init__(self, connection: Frames, name: str, version: int) -> None:
        self._connection = connection
        self._version = version
        (self._who,) = new_producers([connection], [name])
        self._sequence = 0

    def transact(self, clock: _Clock) -> None:
        if self._version == 1:
            clock.time("AddPartitionsToTxn", self._add)
        clock.time("Produce", self._produce)
        clock.time("EndTxn", self._end)

    def _add(self) -> None:
        add_partitions(self._connection, self._who, TOPIC, [0])

    def _produce(self) -> None:
        request = produce_request(TOPIC, self._who, self._sequence, [_VALUE])
        version = 11 if self._version == 1 else 12

        def ask() -> int:
            return produced(self._connection.call(request, ProduceResponse, version))

        eventually(ask, "Produce")
        self._sequence += 1

    def _end(self) -> None:
        request = end_request(self._who, commit=True)
        version = 4 if self._version == 1 else 5
        answer = self._connection.call(request, EndTxnResponse, version)
        assert answer.error_code == 0, answer
        if self._version == 2:
            self._who = Identity(
                self._who.transactional_id, answer.producer_id, answer.producer_epoch
            )
            self._sequence = 0


def measure(bootstrap: str, pid: int, version: int, rounds: int) -> str:
    """Return a table of the steps: p50 and p99 in ms, and the broker's CPU for a transaction."""
    with Frames(bootstrap) as connection:
        producer = _Producer(connection, f"frames-{version}", version)
        for _ in range(rounds // 4):
            producer.transact(_Clock())
        clock = _Clock()
        cpu_before = cpu_seconds(pid)
        for _ in range(rounds):
            clock.time("transaction", lambda: producer.transact(clock))
        cpu_us = (cpu_seconds(pid) - cpu_before) / rounds * 1e6
    lines = [f"version {version}: broker CPU {cpu_us:.0f} us"]
    for step, took in clock.steps.items():
        cuts = quantiles(took, n=100)
        lines.append(f"  {step:20} p10 {cuts[9]:6.3f}  p50 {cuts[49]:6.3f}  p99 {cuts[98]:6.3f} ms")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="transaction_frames")
    parser.add_argument("--broker", choices=("kafka", "magnetar"), default="magnetar")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--durability", choices=("fsync", "page-cache", "memory"))
    arguments = parser.parse_args()
    settings = {"durability": arguments.durability} if arguments.durability else {}
    with running(arguments.broker, settings) as broker:
        create_topic(broker.bootstrap, TOPIC)
        for version in (1, 2):
            print(measure(broker.bootstrap, broker.pid, version, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
