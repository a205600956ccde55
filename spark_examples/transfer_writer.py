"""One writer's process: `python -m spark_examples.transfer_writer ORDER`. It writes transfers in
transactions, some of which it aborts, and keeps a journal of what it asked for and was answered.

It may be killed at any moment: its successor has the same transactional id, which fences it and
aborts what it left open, and goes on behind the last line of its journal.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException, Producer

from spark_examples.transfers import name_of, value_of

_CALL_TIMEOUT_S = 60.0


class Event(StrEnum):
    """The notes of a writer about a transaction, in this order; the last two exclude each other."""

    BEGIN = "begin"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Order:
    """A writer's order, passed to its process as JSON."""

    writer: int
    bootstrap_servers: str
    topic: str
    partitions: int
    journal: str
    #: None: the writer writes until SIGTERM.
    transactions: int | None
    #: Each transaction has between this number of transfers and twice as many.
    transfers_each: int
    abort_probability: float
    #: The pause between two transactions.
    pause_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Order:
        return Order(**json.loads(text))


class Journal:
    """A file of JSON lines. A line is there when `note` returns, even if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def note(self, event: Event, transaction: int, first_number: int, end_number: int) -> None:
        line = json.dumps([event, transaction, first_number, end_number]) + "\n"
        os.write(self._file, line.encode())


def last_of(path: Path) -> tuple[int, int]:
    """Return the next transaction and the next number after those in a journal."""
    lines = path.read_text().splitlines() if path.exists() else []
    if not lines:
        return 0, 0
    _, transaction, _, end_number = json.loads(lines[-1])
    return transaction + 1, end_number


class Writer:
    """Writes one transaction after the other."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._end_transaction = math.inf if order.transactions is None else order.transactions
        self._next_transaction, self._next_number = last_of(Path(order.journal))
        self._journal = Journal(Path(order.journal))
        self._producer = Producer(
            {
                "bootstrap.servers": order.bootstrap_servers,
                "transactional.id": name_of(order.writer),
                "transaction.timeout.ms": 30_000,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "reconnect.backoff.max.ms": 500,
                # Rebootstrapping would forget the coordinator that a transaction waits for.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Write the rest of the order. SIGTERM ends it after the open transaction."""
        signal.signal(signal.SIGTERM, self._on_termination)
        self._producer.init_transactions(_CALL_TIMEOUT_S)
        while self._next_transaction < self._end_transaction:
            self._transact()
            time.sleep(self._order.pause_s)

    def _on_termination(self, number: int, frame: FrameType | None) -> None:
        self._end_transaction = 0

    def _transact(self) -> None:
        transaction, first = self._next_transaction, self._next_number
        end = first + random.randint(1, 2 * self._order.transfers_each)
        self._next_transaction, self._next_number = transaction + 1, end
        self._journal.note(Event.BEGIN, transaction, first, end)
        self._producer.begin_transaction()
        aborts = random.random() < self._order.abort_probability
        try:
            self._produce(transaction, first, end)
            if aborts:
                self._producer.flush(_CALL_TIMEOUT_S)  # Into the log: an abort drops what waits.
            else:
                self._journal.note(Event.COMMITTING, transaction, first, end)
                self._producer.commit_transaction(_CALL_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            aborts = True
        if aborts:
            self._producer.abort_transaction(_CALL_TIMEOUT_S)
        self._journal.note(Event.ABORTED if aborts else Event.COMMITTED, transaction, first, end)

    def _produce(self, transaction: int, first_number: int, end_number: int) -> None:
        order, producer = self._order, self._producer
        for number in range(first_number, end_number):
            value = value_of(order.writer, transaction, number)
            producer.produce(order.topic, value, partition=number % order.partitions)
            if number % 1000 == 0:
                producer.poll(0)


def main() -> int:
    try:
        Writer(Order.from_json(sys.argv[1])).run()
    except KafkaException as error:
        print(f"{error}", file=sys.stderr)
        return 1  # It is started again: that is safe at any point.
    return 0


if __name__ == "__main__":
    sys.exit(main())
