"""The writers of transfers: started together, killed, started again until their orders are done;
and what their journals say at the end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from spark_examples.transfer_writer import Event, Order
from spark_examples.transfers import name_of

_CALL_TIMEOUT_S = 60.0


class Transaction(NamedTuple):
    """A transaction of a writer: transfers `first_number` to `end_number`, exclusive.

    `outcome` is `committed` (the commit returned), `aborted` (the abort returned, or no commit was
    ever asked for) or `unknown` (asked for, never answered).
    """

    writer: str
    transaction: int
    first_number: int
    end_number: int
    outcome: str


_OUTCOMES: Mapping[str, str] = {
    Event.BEGIN: "aborted",
    Event.COMMITTING: "unknown",
    Event.COMMITTED: "committed",
    Event.ABORTED: "aborted",
}


class Crew:
    """Writers with one order each. Leaving the `with` block ends their processes."""

    def __init__(self, order: Order, writers: int, report: Callable[[str], None]) -> None:
        """Give every writer `order`, with a number and a journal of its own."""
        self._orders = [
            replace(order, writer=number, journal=f"{order.journal}-{number}")
            for number in range(writers)
        ]
        self._report = report
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Crew:
        for order in self._orders:
            self._start(order)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def keep_running(self) -> bool:
        """Start writers again that ended too early; return whether any still has work."""
        working = False
        for order in self._orders:
            code = self._processes[order.writer].poll()
            if code not in (None, 0):
                self._start(order)
            working = working or code != 0
        return working

    def stop(self) -> None:
        """End all writers, each after its open transaction."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def begun(self) -> int:
        """Return how many transactions have begun."""
        return sum(len(_latest_events(Path(order.journal))) for order in self._orders)

    def kill_one(self) -> None:
        """Kill a writer that is working, if any is, with SIGKILL."""
        working = [n for n, process in self._processes.items() if process.poll() is None]
        if working:
            number = random.choice(working)
            self._report(f"kill -9 {name_of(number)}")
            self._processes[number].kill()
            self._processes[number].wait()

    def close_transactions(self) -> None:
        """Take over every writer's id, since an open transaction would hide later ones."""
        for order in self._orders:
            successor = Producer(
                {
                    "bootstrap.servers": order.bootstrap_servers,
                    "transactional.id": name_of(order.writer),
                    "log_level": 0,
                }
            )
            successor.init_transactions(_CALL_TIMEOUT_S)

    def history(self) -> list[Transaction]:
        """Return every transaction that was begun, with its outcome."""
        return [
            Transaction(name_of(order.writer), number, first, end, _OUTCOMES[event])
            for order in self._orders
            for event, number, first, end in _latest_events(Path(order.journal)).values()
        ]

    def _start(self, order: Order) -> None:
        command = [sys.executable, "-m", "spark_examples.transfer_writer", order.to_json()]
        self._processes[order.writer] = subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _latest_events(journal: Path) -> dict[int, tuple[str, int, int, int]]:
    """Return the last line of each transaction, by its number."""
    return {line[1]: line for line in _lines(journal)}


def _lines(journal: Path) -> Iterator[tuple[str, int, int, int]]:
    if journal.exists():
        for line in journal.read_text().splitlines():
            event, transaction, first_number, end_number = json.loads(line)
            yield event, transaction, first_number, end_number
