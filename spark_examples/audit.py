"""`make audit`: writers fill a topic with some millions of records in transactions, while they and
the broker are killed; then a batch job reads all of it and proves in Spark SQL that every record
is there exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_examples.crew import Crew, Transaction
from spark_examples.exactly_once import Audit, audit, table_of
from spark_examples.killing import Killer, kill_broker
from spark_examples.running import Failed, Setting, create_topic, main_of
from spark_examples.session import read_topic, start_session, working
from spark_examples.transfer_writer import Order
from spark_examples.transfers import parsed

TOPIC = "transfers"
PARTITIONS = 4


class Size(NamedTuple):
    """How many records are written, and what is killed meanwhile."""

    writers: int = 3
    transactions_each: int = 350
    transfers_each: int = 2000
    kills: tuple[str, ...] = ("writer", "broker", "writer", "writer", "broker", "writer")


FULL = Size()


def write(setting: Setting, size: Size) -> list[Transaction]:
    """Let the crew write, with kills; return the transactions in its journals."""
    create_topic(setting.broker.bootstrap_servers, TOPIC, PARTITIONS)
    order = Order(
        writer=0,
        bootstrap_servers=setting.broker.bootstrap_servers,
        topic=TOPIC,
        partitions=PARTITIONS,
        journal=str(setting.directory / "journal"),
        transactions=size.transactions_each,
        transfers_each=size.transfers_each,
        abort_probability=0.1,
        pause_s=0.0,
    )
    with Crew(order, size.writers, setting.report) as crew:
        victims = {
            "writer": crew.kill_one,
            "broker": lambda: kill_broker(setting.broker, setting.report),
        }
        killer = Killer(victims, size.kills)
        told_at = 0.0
        while crew.keep_running():
            written = crew.begun() / (size.writers * size.transactions_each)
            killer.at(written)
            if time.monotonic() - told_at > 1.0:
                told_at = time.monotonic()
                setting.report(f"{written:4.0%} written")
            time.sleep(0.05)
        crew.close_transactions()
        return crew.history()


def read_and_audit(
    spark: SparkSession, bootstrap_servers: str, history: Sequence[Transaction]
) -> tuple[Audit, int]:
    """Return the audit of the topic, and how many records of aborted transactions lie in it."""
    visible = parsed(read_topic(spark, bootstrap_servers, TOPIC, "read_committed"))
    visible.persist()
    found = audit(visible, table_of(spark, history))
    visible.unpersist()
    written = read_topic(spark, bootstrap_servers, TOPIC, "read_uncommitted").count()
    return found, written - found.visible_records


def example(setting: Setting) -> Sequence[str]:
    """Write and audit at full size."""
    history = write(setting, FULL)
    setting.report("all is written; Spark reads it")
    spark = start_session(setting.directory)
    try:
        with working(spark, setting.report):
            found, hidden = read_and_audit(spark, setting.broker.bootstrap_servers, history)
    finally:
        spark.stop()
    return told(found, hidden)


def told(found: Audit, hidden: int) -> Sequence[str]:
    """Yield the findings as lines; raises Failed if they are not exactly once."""
    if found.faults:
        raise Failed("not exactly once:\n" + "\n".join(map(str, found.faults)))
    lines = [
        f"{found.transactions[outcome]:9,} transactions {outcome:9} with {records:9,} records"
        for outcome, records in sorted(found.records.items())
    ]
    return (
        *lines,
        f"{found.visible_records:,} records are visible; {hidden:,} of aborted transactions, which"
        " lie in the log too, are not",
        "EXACTLY ONCE: nothing is lost, duplicated, out of order, partly visible, or aborted but"
        " visible.",
    )


if __name__ == "__main__":
    main_of("audit", __doc__, example)
