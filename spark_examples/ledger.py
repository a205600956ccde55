"""`make ledger`: writers move money between bank accounts, in transactions; a streaming job keeps
the balances and writes them exactly once. Writers, broker, tasks and the whole job are killed on
the way. At the end there is as much money as there was, and every balance is true.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaException

from spark_examples.bookkeeper import Bookkeeper
from spark_examples.crew import Crew, Transaction
from spark_examples.killing import Kill, Killer, kill_broker, kill_task_when_there_is_one
from spark_examples.ledger_check import Finding, check
from spark_examples.ledger_query import Order as Books
from spark_examples.pictures import Sample, draw_ledger
from spark_examples.running import Ends, Failed, Gauge, Setting, create_topic, main_of
from spark_examples.session import start_session, working
from spark_examples.transfer_writer import Order
from spark_examples.transfers import ACCOUNTS, OPENING_BALANCE

TRANSFERS, BALANCES = "transfers", "balances"
PARTITIONS = 4
_DEADLINE_S = 1800.0
_TELL_EVERY_S = 2.0


class Size(NamedTuple):
    """What is killed during how many batches, and how fast writers write meanwhile."""

    batches: int = 16
    writers: int = 3
    transfers_each: int = 50
    pause_s: float = 0.1
    kills: tuple[str, ...] = ("task", "writer", "broker", "job", "task", "broker")


FULL = Size()


class Watch:
    """Samples the ends of the transfers in a thread, and asks a broker that is away again."""

    def __init__(self, gauge: Gauge) -> None:
        self.samples: list[Sample] = []
        self._gauge = gauge
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            try:
                ends = self._gauge.ends()
            except KafkaException:
                continue
            self.samples.append(Sample(time.monotonic(), ends))


def order_of(setting: Setting, size: Size) -> Order:
    """Return the order of each writer."""
    return Order(
        writer=0,
        bootstrap_servers=setting.broker.bootstrap_servers,
        topic=TRANSFERS,
        partitions=PARTITIONS,
        journal=str(setting.directory / "journal"),
        transactions=None,
        transfers_each=size.transfers_each,
        abort_probability=0.1,
        pause_s=size.pause_s,
    )


class Run:
    """One run of the ledger: writers, job, kills."""

    def __init__(self, setting: Setting, size: Size) -> None:
        self._setting = setting
        self._size = size
        self._kills: list[Kill] = []
        self._gauge = Gauge(setting.broker.bootstrap_servers, TRANSFERS, PARTITIONS)
        self._told_at = 0.0

    def run(self) -> list[Transaction]:
        """Write and keep the books until all transfers are booked; return the history."""
        setting = self._setting
        books = Books(
            bootstrap_servers=setting.broker.bootstrap_servers,
            transfers_topic=TRANSFERS,
            balances_topic=BALANCES,
            sink=setting.sink,
            directory=str(setting.directory),
        )
        with Bookkeeper(books, setting.report) as keeper, Watch(self._gauge) as watch:
            keeper.await_ready()
            with Crew(order_of(setting, self._size), self._size.writers, setting.report) as crew:
                self._write(crew, keeper, watch)
                crew.close_transactions()
                history = crew.history()
            self._await_booked(keeper, watch)
            keeper.stop()
        if setting.pictures is not None:
            drawn = draw_ledger(setting.pictures, watch.samples, keeper.batches, self._kills)
            setting.report(f"drawn: {drawn}")
        return history

    def _write(self, crew: Crew, keeper: Bookkeeper, watch: Watch) -> None:
        setting = self._setting
        killer = Killer(
            {
                "writer": crew.kill_one,
                "broker": lambda: kill_broker(setting.broker, setting.report),
                "task": lambda: kill_task_when_there_is_one(keeper.pid, setting.report),
                "job": keeper.kill,
            },
            self._size.kills,
        )
        self._kills = killer.killed
        deadline = time.monotonic() + _DEADLINE_S
        while not killer.is_done or len(keeper.batches) < self._size.batches:
            if time.monotonic() > deadline:
                raise Failed(f"no {self._size.batches} batches within {_DEADLINE_S:.0f} s")
            crew.keep_running()
            keeper.keep_running()
            killer.at(len(keeper.batches) / self._size.batches)
            self._tell(keeper, watch)
            time.sleep(0.05)
        crew.stop()

    def _await_booked(self, keeper: Bookkeeper, watch: Watch) -> None:
        """Wait until the job has read all transfers."""
        end = self._gauge.ends_when_back().stable
        deadline = time.monotonic() + _DEADLINE_S
        while keeper.offset < end:
            keeper.keep_running()
            if time.monotonic() > deadline:
                raise Failed(f"{end - keeper.offset} offsets were not booked")
            self._tell(keeper, watch)
            time.sleep(0.05)

    def _tell(self, keeper: Bookkeeper, watch: Watch) -> None:
        if time.monotonic() - self._told_at < _TELL_EVERY_S:
            return
        self._told_at = time.monotonic()
        ends = watch.samples[-1].ends if watch.samples else Ends(0, 0)
        self._setting.report(
            f"{ends.written:7,} offsets written, {ends.written - ends.stable:5,} held back by open"
            f" transactions, {max(0, ends.stable - keeper.offset):6,} to be booked, in"
            f" {len(keeper.batches)} batches so far"
        )


def example(setting: Setting) -> Sequence[str]:
    """Run at full size, and check."""
    for topic in (TRANSFERS, BALANCES):
        create_topic(setting.broker.bootstrap_servers, topic, PARTITIONS)
    history = Run(setting, FULL).run()
    setting.report("all is booked; another Spark checks it")
    spark = start_session(setting.directory)
    try:
        with working(spark, setting.report):
            found = check(spark, setting.broker.bootstrap_servers, TRANSFERS, BALANCES, history)
    finally:
        spark.stop()
    return told(found)


def told(found: Finding) -> Sequence[str]:
    """Yield the findings as lines; raises Failed if a balance is not true."""
    if found.faults:
        raise Failed("the books are wrong:\n" + "\n".join(found.faults))
    assert found.total == found.accounts * OPENING_BALANCE, found
    return (
        f"{found.transfers:,} transfers between {found.accounts} of {ACCOUNTS} accounts, booked in"
        f" {found.batches} batches; {found.hidden:,} balances of tasks that were killed are hidden",
        f"they opened with {found.accounts * OPENING_BALANCE:,} and hold {found.total:,}",
        "EXACTLY ONCE: every balance is true, and every batch was whole.",
    )


if __name__ == "__main__":
    main_of("ledger", __doc__, example)
