"""Spark's stock connector, the sink: at least once, on every broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.brokers import Broker
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeTopic
from compat_tests.numbered import three_transactions
from compat_tests.spark import Spark, positions

pytestmark = pytest.mark.timeout(300)
COMMITTED = [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]


def values(frame: DataFrame) -> list[int]:
    """Return the values of a topic, sorted."""
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_rows_say_topic_partition_key_and_headers(spark: Spark, topic: MakeTopic) -> None:
    first, second = topic("sink", partitions=2), topic("sink")
    schema = "topic string, partition int, key string, value string, headers "
    schema += "array<struct<key: string, value: binary>>"
    rows = [
        (first, 1, "k", "v", [("h", bytearray(b"1")), ("h", None)]),
        (first, 0, None, "w", None),
        (second, 0, "k", None, []),
    ]
    spark.write(spark.session.createDataFrame(rows, schema), includeHeaders="true")
    found = spark.read(subscribe=f"{first},{second}", includeHeaders="true")
    assert positions(found) == sorted((name, partition, 0) for name, partition, *_ in rows)
    columns = ("topic", "partition", "CAST(key AS string)", "CAST(value AS string)", "headers")
    by_place = {(row.topic, row.partition): row for row in found.selectExpr(*columns).collect()}
    for name, partition, key, value, headers in rows:
        row = by_place[name, partition]
        assert (row.key, row.value) == (key, value)
        assert [tuple(header) for header in row.headers or []] == (headers or [])


def test_rows_without_a_value_column_are_refused(spark: Spark, topic: MakeTopic) -> None:
    name = topic("sink")
    with pytest.raises(AnalysisException, match="'value'"):
        spark.write(spark.session.range(3), topic=name)
    assert values(spark.read(subscribe=name)) == []


def test_a_stream_is_written_once_while_nothing_fails(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic("source"), topic("target", partitions=2)
    writer = three_transactions(broker.bootstrap, source)

    def run() -> None:
        reader = spark.read_stream(
            subscribe=source,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=6,
            kafka_isolation_level="read_committed",
        )
        spark.write_stream(reader.select("key", "value"), tmp_path, topic=target)

    run()
    assert values(spark.read(subscribe=target)) == COMMITTED
    writer.committed(2)
    run()
    assert values(spark.read(subscribe=target)) == [*COMMITTED, 18, 19]


def test_a_stream_is_written_at_least_once_although_the_broker_is_killed(
    spark_session: SparkSession, own_broker: Broker, topic_on: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic_on(own_broker, "source"), topic_on(own_broker, "target")
    count = 400
    send(producer(own_broker.bootstrap), source, [(None, b"%d" % n) for n in range(count)])
    spark = Spark(spark_session, own_broker.bootstrap)

    def run() -> bool:
        """Return whether the query came to its end."""
        reader = spark.read_stream(
            subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=40
        )
        try:
            spark.write_stream(
                reader.select("value"), tmp_path, topic=target, kafka_delivery_timeout_ms="130000"
            )
        except StreamingQueryException:
            return False
        return True

    killer = threading.Timer(1.0, own_broker.restart, kwargs={"clean": False})
    killer.start()
    ended = run()
    killer.join()
    assert ended or run()
    written = values(spark.read(subscribe=target))
    assert sorted(set(written)) == list(range(count))
