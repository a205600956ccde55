"""The streaming job of the ledger: it keeps the balance of every account, and writes those that a
batch has changed, exactly once.

A process of its own, `python -m spark_examples.ledger_query ORDER`, so that it can be killed: it
tells its batches as JSON lines on standard output, and ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from spark_examples.session import start_session
from spark_examples.transfers import OPENING_BALANCE, parsed, postings

QUERY = "ledger"
#: The value of a record of the balances, as JSON.
SCHEMA = "account INT, balance LONG, postings LONG, batch LONG"
#: Seconds between two looks at the query's reports.
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Order:
    """The job's input and output, passed to its process as JSON."""

    bootstrap_servers: str
    transfers_topic: str
    balances_topic: str
    sink: str
    #: The directory of the checkpoint and of Spark's files.
    directory: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Order:
        return Order(**json.loads(text))


def start_query(spark: SparkSession, order: Order, **trigger: Any) -> StreamingQuery:
    """Start the query, or go on from its checkpoint; `trigger` is as in Spark's writers."""
    transfers = parsed(_transfers(spark, order))
    balances = (
        postings(transfers)
        .groupBy("account")
        .agg(
            (f.lit(OPENING_BALANCE) + f.sum("change")).alias("balance"),
            f.count("*").alias("postings"),
        )
    )

    def write(changed: DataFrame, batch_id: int) -> None:
        says = f.struct("account", "balance", "postings", f.lit(batch_id).alias("batch"))
        key = f.col("account").cast("string")
        rows = changed.select(key.alias("key"), f.to_json(says).alias("value"))
        writer = rows.write.format(order.sink).mode("append").option("topic", order.balances_topic)
        writer = writer.option("kafka.bootstrap.servers", order.bootstrap_servers)
        if order.sink == "magnetar":
            writer = writer.option("queryId", QUERY).option("batchId", str(batch_id))
        writer.save()

    writer = balances.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(Path(order.directory) / "checkpoint"))
    return writer.trigger(**trigger).start()


def _transfers(spark: SparkSession, order: Order) -> DataFrame:
    reader = spark.readStream.format("kafka").option("subscribe", order.transfers_topic)
    reader = reader.option("kafka.bootstrap.servers", order.bootstrap_servers)
    reader = reader.option("kafka.isolation.level", "read_committed")
    return reader.option("startingOffsets", "earliest").load()


def reports(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """Yield what is told of each batch, as it ends, as long as the query runs.

    A batch may have no rows, where there are only markers and records of aborted transactions.
    """
    told = 0
    while query.isActive:
        for progress in query.recentProgress:
            report = json.loads(progress.json)
            offset = _sum(report["sources"][0]["endOffset"] or {})
            if offset > told:
                told = offset
                yield {
                    "batch": report["batchId"],
                    "rows": report["numInputRows"],
                    "took_ms": report["durationMs"]["triggerExecution"],
                    "offset": offset,
                }
        time.sleep(_LOOK_EVERY_S)


def _sum(offsets: dict[str, dict[str, int]]) -> int:
    return sum(offset for partitions in offsets.values() for offset in partitions.values())


def tell(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    order = Order.from_json(sys.argv[1])
    spark = start_session(Path(order.directory))
    query = start_query(spark, order, processingTime="0 seconds")

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    tell({"ready": True})
    for report in reports(query):
        tell(report)
    query.awaitTermination()  # Raises what the query failed by.
    spark.stop()


if __name__ == "__main__":
    main()
