"""`make backfill`: a batch job writes a whole DataFrame to a topic, and all of it becomes visible
in one moment, although tasks and the broker are killed while it writes. The rows are the lines of
the Python that is installed here.
"""

from __future__ import annotations

import os
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_examples.killing import Kill, Killer, kill_broker, kill_task_when_there_is_one
from spark_examples.pictures import Sample, draw_backfill
from spark_examples.running import Failed, Gauge, Setting, create_topic, main_of
from spark_examples.session import read_topic, start_session

TOPIC = "lines"
PARTITIONS = 4
TASKS = 8
_READ_TIMEOUT_S = 60.0
_TELL_EVERY_S = 1.0
#: Spark does not read files whose names begin with these.
_HIDDEN = ("_", ".")


class Size(NamedTuple):
    """About how many lines are written at most, and what is killed meanwhile."""

    lines_max: int = 500_000
    kills: tuple[str, ...] = ("task", "task", "broker", "task")


FULL = Size()


def lines(spark: SparkSession, lines_max: int) -> DataFrame:
    """Return the rows: key, the file; value, a line of it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = spark.read.text([path.as_uri() for path in _files(root, lines_max)])
    key = f.col("_metadata.file_path").substr(len(root.as_uri()) + 2, 1000)
    # Bytes: not every file is UTF-8.
    return texts.select(key.alias("key"), f.col("value").cast("binary").alias("value")).repartition(
        TASKS
    )


def _files(root: Path, lines_max: int) -> Iterator[Path]:
    """Yield files of Python's library, until they have about `lines` lines."""
    left = lines_max
    for path in sorted(root.rglob("*.py")):
        if left > 0 and not path.name.startswith(_HIDDEN):
            left -= path.read_bytes().count(b"\n")
            yield path


class Reader:
    """Counts what a read_committed consumer finds, in a thread; samples how far the topic reaches.

    A first record must not come before all are written: the job decides when its last task is done.
    """

    def __init__(self, bootstrap_servers: str, rows: int) -> None:
        self.samples: list[Sample] = []
        self.seen = 0
        #: Rows that were not in the log yet when the first row was visible.
        self.missing_beside_visible = 0
        self._rows = rows
        self._gauge = Gauge(bootstrap_servers, TOPIC, PARTITIONS)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "backfill",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def written(self) -> int:
        """Return how many offsets the log has."""
        return self.samples[-1].ends.written if self.samples else 0

    def __enter__(self) -> Reader:
        assigned = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        self._consumer.assign(assigned)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._over.is_set():
            found = len([each for each in self._consumer.consume(20_000, 0.1) if not each.error()])
            ends = self._gauge.ends_when_back()
            if found and not self.seen:
                self.missing_beside_visible = max(0, self._rows - ends.written)
            self.seen += found
            self.samples.append(Sample(time.monotonic(), ends, self.seen))


class Killing:
    """Kills while rows are written, in a thread, and prints the progress."""

    def __init__(self, setting: Setting, reader: Reader, kills: Sequence[str], rows: int) -> None:
        self._report = setting.report
        self._reader = reader
        self._rows = rows
        victims = {
            "task": lambda: kill_task_when_there_is_one(os.getpid(), setting.report),
            "broker": lambda: kill_broker(setting.broker, setting.report),
        }
        self._killer = Killer(victims, kills)
        self._over = threading.Event()

    @property
    def killed(self) -> Sequence[Kill]:
        return self._killer.killed

    def run(self) -> None:
        told_at = 0.0
        while not self._over.is_set():
            self._killer.at(self._reader.written / self._rows)
            if time.monotonic() - told_at > _TELL_EVERY_S:
                told_at = time.monotonic()
                self.tell()
            time.sleep(0.02)

    def tell(self) -> None:
        reader = self._reader
        self._report(f"{reader.written:9,} offsets in the log, {reader.seen:9,} rows visible")

    def end(self) -> None:
        self._over.set()


def write(setting: Setting, frame: DataFrame, kills: Sequence[str], rows: int) -> Reader:
    """Write with kills, and return what a reader saw. Raises Failed if it did not see all rows."""
    bootstrap_servers = setting.broker.bootstrap_servers
    with Reader(bootstrap_servers, rows) as reader, ThreadPoolExecutor(1) as aside:
        killing = Killing(setting, reader, kills, rows)
        killed = aside.submit(killing.run)
        try:
            # Not in a thread: Spark finds the sink through the session of the calling thread.
            writer = frame.write.format(setting.sink).mode("append").option("topic", TOPIC)
            writer.option("kafka.bootstrap.servers", bootstrap_servers).save()
        finally:
            killing.end()
            killed.result()
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while reader.seen < rows:
            if time.monotonic() > deadline:
                raise Failed(f"a reader saw {reader.seen:,} of {rows:,} rows")
            time.sleep(0.02)
        killing.tell()
    if setting.pictures is not None:
        setting.report(f"drawn: {draw_backfill(setting.pictures, reader.samples, killing.killed)}")
    return reader


def faults(reader: Reader, frame: DataFrame, written: DataFrame) -> list[str]:
    """Compare the topic with the rows, file by file, and with what the reader saw too early."""
    found = []
    if reader.missing_beside_visible:
        found.append(
            f"a reader saw rows when {reader.missing_beside_visible:,} others were not written yet"
        )
    expected, there = _fingerprints(frame), _fingerprints(written)
    if different := sorted(expected.items() ^ there.items()):
        found.append(f"{len(different)} files are not as they were, the first: {different[0]}")
    return found


def _fingerprints(frame: DataFrame) -> dict[str, tuple[int, int]]:
    """Return how many rows there are under each key, and the sum of their hashes."""
    text = frame.select(f.col("key").cast("string"), "value")
    hashes = f.sum(f.xxhash64("value").cast("decimal(38,0)"))
    rows = text.groupBy("key").agg(f.count("*").alias("rows"), hashes.alias("hashes")).collect()
    return {row.key: (row.rows, int(row.hashes)) for row in rows}


def example(setting: Setting) -> Sequence[str]:
    """Write all lines, and compare."""
    bootstrap_servers = setting.broker.bootstrap_servers
    create_topic(bootstrap_servers, TOPIC, PARTITIONS)
    spark = start_session(setting.directory)
    try:
        frame = lines(spark, FULL.lines_max)
        rows = frame.count()
        setting.report(f"{rows:,} rows in {TASKS} tasks")
        reader = write(setting, frame, FULL.kills, rows)
        written = read_topic(spark, bootstrap_servers, TOPIC, "read_committed")
        wrong = faults(reader, frame, written)
        hidden = read_topic(spark, bootstrap_servers, TOPIC, "read_uncommitted").count() - rows
    finally:
        spark.stop()
    if wrong:
        raise Failed("\n".join(wrong))
    return (
        f"{rows:,} rows became visible in one moment; {hidden:,} of tasks that were killed lie in"
        " the log and never do",
        "EXACTLY ONCE: every file has its lines, each as often as in the file.",
    )


if __name__ == "__main__":
    main_of("backfill", __doc__, example)
