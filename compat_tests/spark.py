"""Spark and its stock Kafka connector: one session, and what the tests do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

from compat_tests.brokers import MAGNETAR

#: The connector's; pyspark may be of any later 4.0.
VERSION = "4.0.0"
#: For a query to end in; machines that do other things too are slow.
QUERY_TIMEOUT_S = 200.0
_QUIET = Path(__file__).with_name("log4j2-quiet.properties")
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    f"-Dlog4j2.configurationFile=file:{_QUIET}",
)
#: Rows are few here: what pays off for many of them only costs time.
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "compat_tests",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
}
#: Settings of a session that say how a streaming query asks for offsets: a consumer or an admin.
DEPRECATED_OFFSET_READER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


#: What is kept of a micro-batch and its id.
See = Callable[[DataFrame, int], list[Any]]


class Batch(NamedTuple):
    """A micro-batch: the offsets of partition 0 it ranges over, and what was seen in it.

    Spark says no first offset of a query's first batch.
    """

    first_offset: int | None
    end_offset: int
    seen: list[Any]


def start_session(directory: Path) -> SparkSession:
    """Start a JVM with a session; what it keeps on the disk goes below `directory`."""
    # Spark's own processes of Python have to find the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.config("spark.jars", _jars())
    builder = builder.config("spark.local.dir", str(directory / "local"))
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _jars() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(cache) / "magnetar" / f"spark-{VERSION}"
    command = [str(MAGNETAR), "spark-jars", "--spark", VERSION, str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


class Spark:
    """The session with one broker's address filled in."""

    def __init__(self, session: SparkSession, bootstrap: str) -> None:
        self.session = session
        self.bootstrap = bootstrap

    def read(self, **options: Any) -> DataFrame:
        """Return a batch read; options by the connector's names, `kafka_x_y` for kafka.x.y."""
        return self.session.read.format("kafka").options(**self.named(options)).load()

    def read_stream(self, **options: Any) -> DataFrame:
        return self.session.readStream.format("kafka").options(**self.named(options)).load()

    def write(self, frame: DataFrame, **options: Any) -> None:
        frame.write.format("kafka").options(**self.named(options)).save()

    def write_stream(self, frame: DataFrame, checkpoint: Path, **options: Any) -> None:
        """Write what there is now and return when it is written."""
        writer = frame.writeStream.format("kafka").options(**self.named(options))
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        await_end(query)

    def micro_batches(
        self, frame: DataFrame, checkpoint: Path, see: See | None = None
    ) -> dict[int, Batch]:
        """Run a query over what there is now; return its batches by their ids.

        `frame` reads one partition, started at an offset or resumed from `checkpoint`. `see` takes
        a batch and its id and returns what is kept of it, by default its `numbers`. An error of
        the query, or of `see`, is raised as StreamingQueryException.
        """
        seen: dict[int, list[Any]] = {}

        def collect(batch: DataFrame, batch_id: int) -> None:
            seen[batch_id] = numbers(batch) if see is None else see(batch, batch_id)

        writer = frame.writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        await_end(query)
        reports = [json.loads(report.json) for report in query.recentProgress]
        ranges = {report["batchId"]: report["sources"][0] for report in reports}
        return {
            batch_id: Batch(
                _offset(ranges[batch_id]["startOffset"]),
                _offset(ranges[batch_id]["endOffset"]) or 0,
                kept,
            )
            for batch_id, kept in seen.items()
        }

    def named(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return options by their own names, with the broker's address."""
        named = {"kafka.bootstrap.servers": self.bootstrap}
        for name, value in options.items():
            key = name.replace("_", ".")
            named[key] = value if isinstance(value, str) else json.dumps(value)
        return named


def numbers(frame: DataFrame) -> list[int]:
    """Return the values of a numbered topic, in offset order; each must be its record's offset."""
    rows = sorted(frame.select("offset", "value").collect())
    found = [int(row.value) for row in rows]
    assert [row.offset for row in rows] == found
    return found


def positions(frame: DataFrame) -> list[tuple[str, int, int]]:
    """Return (topic, partition, offset) of every record, sorted."""
    rows: list[Row] = frame.select("topic", "partition", "offset").collect()
    return sorted((row.topic, row.partition, row.offset) for row in rows)


def splits(frame: DataFrame) -> list[list[int]]:
    """Return the offsets that each of Spark's tasks read; tasks without any at the end."""
    by_task: dict[int, list[int]] = defaultdict(list)
    for row in frame.selectExpr("spark_partition_id() AS task", "offset").collect():
        by_task[row.task].append(row.offset)
    found = [sorted(offsets) for offsets in by_task.values()]
    return sorted(found) + [[]] * (frame.rdd.getNumPartitions() - len(found))


def await_end(query: Any) -> None:
    """Return when the query has ended. What ended it, if something did, is raised."""
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query goes on and on"
    finally:
        query.stop()


def _offset(offsets: Any) -> int | None:
    """Return the offset of partition 0 of the only topic in Spark's JSON."""
    if offsets is None:
        return None
    (partitions,) = offsets.values()
    offset: int = partitions["0"]
    return offset
