"""`make sessionize`: real events (which part of this project was changed when) are written to a
topic in transactions; a streaming job makes sessions of them by their own times, to Parquet and to
a topic, exactly once. Some transactions are aborted and the broker is killed on the way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from spark_examples.change_events import Event, Session, events, sessions
from spark_examples.killing import kill_broker
from spark_examples.pictures import draw_sessions
from spark_examples.running import Failed, Setting, create_topic, main_of
from spark_examples.session import read_topic, start_session

CHANGES, SESSIONS = "changes", "sessions"
PARTITIONS = 4
GAP_S = 20 * 60
#: How much older than the newest one read an event may be: partitions are read at different paces.
_LATE = "1 hour"
_BATCHES = 5
_EVENTS_PER_TRANSACTION = 100
_CALL_TIMEOUT_S = 60.0
_QUERY_TIMEOUT_S = 1200.0
_EVENT = "at_s LONG, part STRING, path STRING, size LONG"
_SESSION = "part STRING, first_s LONG, last_s LONG, changes LONG, size LONG"
#: The part of an event that only advances the time.
_CLOCK = ""


def write_events(bootstrap_servers: str, found: Sequence[Event]) -> int:
    """Write the events, some of them first in a transaction that is aborted; return how many were.

    Last in each partition comes a record that only tells the time, some hours later: what is open
    then is over. Events go round the partitions, so that these tell about the same time.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": "changes",
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    producer.init_transactions(_CALL_TIMEOUT_S)
    aborted = 0
    for start in range(0, len(found), _EVENTS_PER_TRANSACTION):
        chunk = found[start : start + _EVENTS_PER_TRANSACTION]
        if start // _EVENTS_PER_TRANSACTION % 3 == 0:
            _transact(producer, chunk, commit=False)
            aborted += len(chunk)
        _transact(producer, chunk, commit=True)
    late_s = found[-1].at_s + 24 * 3600
    _transact(producer, [Event(late_s, _CLOCK, "", 0)] * PARTITIONS, commit=True)
    return aborted


def _transact(producer: Producer, chunk: Sequence[Event], *, commit: bool) -> None:
    producer.begin_transaction()
    for number, event in enumerate(chunk):
        producer.produce(CHANGES, event.to_value(), event.part, partition=number % PARTITIONS)
    if commit:
        producer.commit_transaction(_CALL_TIMEOUT_S)
    else:
        producer.flush(_CALL_TIMEOUT_S)  # Into the log: an abort drops what waits.
        producer.abort_transaction(_CALL_TIMEOUT_S)


def sessions_of(spark: SparkSession, bootstrap_servers: str, batch_offsets: int) -> DataFrame:
    """Return the stream of ended sessions."""
    reader = spark.readStream.format("kafka").option("subscribe", CHANGES)
    reader = reader.option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.option("startingOffsets", "earliest")
    records = reader.option("maxOffsetsPerTrigger", batch_offsets).load()
    event = f.from_json(f.col("value").cast("string"), _EVENT).alias("event")
    changes = records.select(event).select("event.*").withColumn("at", f.timestamp_seconds("at_s"))
    grouped = changes.withWatermark("at", _LATE).groupBy(
        f.session_window("at", f"{GAP_S} seconds"), "part"
    )
    return grouped.agg(
        f.min("at_s").alias("first_s"),
        f.max("at_s").alias("last_s"),
        f.count("*").alias("changes"),
        f.sum("size").alias("size"),
    ).select("part", "first_s", "last_s", "changes", "size")


def start_queries(
    stream: DataFrame, directory: Path, bootstrap_servers: str, sink: str
) -> list[StreamingQuery]:
    """Start the two queries over the present records: to Parquet, and to the topic."""
    to_files = stream.writeStream.format("parquet").option("path", str(directory / "sessions"))
    to_files = to_files.option("checkpointLocation", str(directory / "to-files"))
    value = f.to_json(f.struct("part", "first_s", "last_s", "changes", "size"))
    rows = stream.select(f.col("part").alias("key"), value.alias("value"))
    to_topic = rows.writeStream.format(sink).option("topic", SESSIONS)
    to_topic = to_topic.option("kafka.bootstrap.servers", bootstrap_servers)
    if sink == "magnetar":
        to_topic = to_topic.option("queryId", "sessionize")
    to_topic = to_topic.option("checkpointLocation", str(directory / "to-topic"))
    return [
        writer.outputMode("append").trigger(availableNow=True).start()
        for writer in (to_files, to_topic)
    ]


def await_queries(setting: Setting, queries: Sequence[StreamingQuery]) -> None:
    """Return when both queries have ended; raises the failure of one."""
    deadline = time.monotonic() + _QUERY_TIMEOUT_S
    told = 0
    killed = False
    while any(query.isActive for query in queries):
        done = sum(len(query.recentProgress) for query in queries)
        if done > told:
            told = done
            setting.report(f"{done} batches")
        if not killed and done >= _BATCHES // 2:
            killed = True
            kill_broker(setting.broker, setting.report)
        if time.monotonic() > deadline:
            raise Failed(f"the queries go on after {_QUERY_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
    for query in queries:
        query.awaitTermination()


def read_back(
    spark: SparkSession, directory: Path, bootstrap_servers: str
) -> dict[str, list[Session]]:
    """Return the sessions as they are in the files and in the topic, sorted."""
    files = spark.read.schema(_SESSION).parquet(str(directory / "sessions"))
    records = read_topic(spark, bootstrap_servers, SESSIONS, "read_committed")
    value = f.from_json(f.col("value").cast("string"), _SESSION).alias("session")
    topic = records.select(value).select("session.*")
    return {
        name: sorted(Session(*row) for row in frame.collect())
        for name, frame in (("Parquet", files), ("topic", topic))
    }


def faults(found: dict[str, list[Session]], expected: Sequence[Session]) -> list[str]:
    """Return faults for sessions that are missing, doubled, or wrong."""
    return [
        f"{name}: {len(there)} sessions, not {len(expected)}; different ones are "
        f"{sorted(set(there) ^ set(expected))[:3]}"
        for name, there in found.items()
        if there != list(expected)
    ]


def example(setting: Setting) -> Sequence[str]:
    """Derive, write, make sessions, compare with sessions made in plain Python."""
    bootstrap_servers = setting.broker.bootstrap_servers
    what, changes = events()
    setting.report(f"{len(changes):,} events: {what}")
    for topic in (CHANGES, SESSIONS):
        create_topic(bootstrap_servers, topic, PARTITIONS)
    aborted = write_events(bootstrap_servers, changes)
    setting.report(f"written, {aborted:,} of them once more in transactions that were aborted")
    spark = start_session(setting.directory)
    try:
        offsets = (len(changes) + aborted) // _BATCHES + 1
        stream = sessions_of(spark, bootstrap_servers, offsets)
        queries = start_queries(stream, setting.directory, bootstrap_servers, setting.sink)
        await_queries(setting, queries)
        found = read_back(spark, setting.directory, bootstrap_servers)
    finally:
        spark.stop()
    expected = sessions(changes, GAP_S)
    if wrong := faults(found, expected):
        raise Failed("\n".join(wrong))
    if setting.pictures is not None:
        setting.report(f"drawn: {draw_sessions(setting.pictures, expected)}")
    return told(expected)


def told(found: Sequence[Session]) -> list[str]:
    """Return the longest sessions as a table, and the verdict."""
    longest = sorted(found, key=lambda session: session.first_s - session.last_s)[:8]
    lines = ["part                from              minutes  changes    size"]
    for session in longest:
        began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(session.first_s))
        minutes = (session.last_s - session.first_s) / 60
        lines.append(
            f"{session.part[:18]:18}  {began}  {minutes:7.1f}  {session.changes:7}  "
            f"{session.size:6}"
        )
    return [
        *lines,
        f"and {len(found) - len(longest)} more, after {GAP_S // 60} minutes without a change each",
        "EXACTLY ONCE: every session is in the Parquet files and in the topic, once, and as plain"
        " Python makes it.",
    ]


if __name__ == "__main__":
    main_of("sessionize", __doc__, example)
