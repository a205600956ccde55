"""Spark's stock connector, batch reads: isolation, ranges of offsets, splits, headers, loss."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from compat_tests.brokers import Broker
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.numbered import Numbered, three_transactions
from compat_tests.offsets import delete_records
from compat_tests.spark import Spark, numbers, positions, splits

pytestmark = pytest.mark.timeout(300)
COMMITTED = [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
ABORTED = [6, 7, 8, 9, 10]
HOUR_MS = 3_600_000
#: Some of the connector's errors reach Python as they were thrown.
REFUSALS = (PySparkException, Py4JJavaError)


@pytest.fixture
def numbered(broker: Broker, topic: MakeTopic) -> tuple[str, Numbered]:
    """A topic with 0-4 committed, 6-10 aborted, 12-16 committed."""
    name = topic("numbered")
    return name, three_transactions(broker.bootstrap, name)


def test_the_isolation_level_decides_what_is_read(
    spark: Spark, numbered: tuple[str, Numbered]
) -> None:
    """Open transactions and what comes after them are read uncommitted only."""
    name, writer = numbered
    end = writer.open(2)
    writer.plain(1)

    def read(isolation: str) -> list[int]:
        return numbers(spark.read(subscribe=name, kafka_isolation_level=isolation))

    assert read("read_committed") == COMMITTED
    assert read("read_uncommitted") == sorted(COMMITTED + ABORTED) + [18, 19, 20]
    end(True)
    assert read("read_committed") == [*COMMITTED, 18, 19, 20]


#: startingOffsets, endingOffsets, what is read; per partition -2 is the earliest, -1 the latest.
RANGES: list[tuple[Any, Any, list[int]]] = [
    ("earliest", "latest", COMMITTED),
    (-2, -1, COMMITTED),
    (2, 14, [2, 3, 4, 12, 13]),
    (5, 17, [12, 13, 14, 15, 16]),
    (7, "latest", [12, 13, 14, 15, 16]),
    (6, 12, []),
    (17, -1, []),
    (18, "latest", []),
    ("earliest", 1, [0]),
]


@pytest.mark.parametrize("offset_reader", ["admin", "consumer"], indirect=True)
def test_a_range_of_offsets_is_read_to_its_bounds(
    spark: Spark, numbered: tuple[str, Numbered], offset_reader: str
) -> None:
    name, _ = numbered

    def offsets(bound: Any) -> Any:
        return bound if isinstance(bound, str) else {name: {"0": bound}}

    found = [
        numbers(
            spark.read(
                subscribe=name,
                startingOffsets=offsets(start),
                endingOffsets=offsets(end),
                kafka_isolation_level="read_committed",
            )
        )
        for start, end, _ in RANGES
    ]
    assert found == [expected for _, _, expected in RANGES]


def test_a_range_of_timestamps_is_read_to_its_bounds(
    spark: Spark, broker: Broker, topic: MakeTopic
) -> None:
    name = topic("timestamps")
    writer = Numbered(broker.bootstrap, name)
    start = int(time.time() * 1000) - 3 * HOUR_MS
    for hour in range(3):
        writer.plain(2, timestamp_ms=start + hour * HOUR_MS)

    def read(**options: Any) -> list[int]:
        return numbers(spark.read(subscribe=name, **options))

    second, third = start + HOUR_MS, start + 2 * HOUR_MS
    after = third + 1
    assert read(startingTimestamp=second) == [2, 3, 4, 5]
    assert read(startingTimestamp=second - 1, endingTimestamp=third) == [2, 3]
    assert read(startingOffsetsByTimestamp={name: {"0": second + 1}}) == [4, 5]
    assert read(endingOffsetsByTimestamp={name: {"0": second}}) == [0, 1]
    assert read(endingTimestamp=after) == [0, 1, 2, 3, 4, 5]
    assert read(startingTimestamp=after, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(REFUSALS, match="No offset matched"):
        read(startingTimestamp=after)


def test_a_timestamp_behind_an_open_transaction_is_not_found_read_committed(
    spark: Spark, broker: Broker, topic: MakeTopic
) -> None:
    name = topic("timestamps")
    writer = Numbered(broker.bootstrap, name)
    late = int(time.time() * 1000) + 60_000
    writer.plain(1)
    end = writer.open(1)
    writer.plain(1, timestamp_ms=late)

    def read(isolation: str) -> list[int]:
        return numbers(
            spark.read(
                subscribe=name,
                startingTimestamp=late,
                startingOffsetsByTimestampStrategy="latest",
                kafka_isolation_level=isolation,
            )
        )

    assert (read("read_uncommitted"), read("read_committed")) == ([2], [])
    end(False)
    assert read("read_committed") == [2]


#: Options, and the splits of offsets 0-17; with 18 some begin at markers, some at aborted records.
SPLITS: list[tuple[dict[str, int], list[list[int]]]] = [
    ({"minPartitions": 6}, [[0, 1, 2], [3, 4], [12, 13, 14], [15, 16], [], []]),
    ({"minPartitions": 18}, [[offset] for offset in COMMITTED] + [[]] * 8),
    (
        {"minPartitions": 2, "maxRecordsPerPartition": 2},
        [[0, 1], [2, 3], [4], [12, 13], [14, 15], [16], [], [], []],
    ),
]


def test_splits_may_begin_anywhere(spark: Spark, numbered: tuple[str, Numbered]) -> None:
    name, _ = numbered
    found = [
        splits(spark.read(subscribe=name, kafka_isolation_level="read_committed", **options))
        for options, _ in SPLITS
    ]
    assert found == [expected for _, expected in SPLITS]


def test_splits_of_interleaved_transactions_hide_what_is_aborted(
    spark: Spark, broker: Broker, topic: MakeTopic
) -> None:
    name = topic("interleaved")
    writer = Numbered(broker.bootstrap, name)
    first, second, third = writer.open(2), writer.open(2), writer.open(2)
    writer.plain(2)
    second(False)
    fourth = writer.open(2)
    third(True)
    first(False)
    writer.plain(1)
    fourth(True)
    assert writer.end_offset == 15
    expected = [4, 5, 6, 7, 9, 10, 13]
    for count in (1, 4, 15):
        frame = spark.read(
            subscribe=name, minPartitions=count, kafka_isolation_level="read_committed"
        )
        assert numbers(frame) == expected
        assert frame.rdd.getNumPartitions() == count


def test_topics_are_chosen_by_name_by_pattern_and_by_partition(
    spark: Spark, broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    base = name("chosen")
    first, second = topic(f"{base}-a", partitions=2), topic(f"{base}-b")
    client = producer(broker.bootstrap)
    for each, partition in ((first, 0), (first, 1), (second, 0)):
        send(client, each, [(None, b"x")], partition)
    everything = [(first, 0, 0), (first, 1, 0), (second, 0, 0)]
    assert positions(spark.read(subscribe=f"{first},{second}")) == everything
    assert positions(spark.read(subscribePattern=f"{base}-.*")) == everything
    assert positions(spark.read(subscribePattern=f"{base}-a.*")) == everything[:2]
    assert positions(spark.read(assign={first: [1], second: [0]})) == everything[1:]


def test_records_arrive_with_all_they_have(spark: Spark, broker: Broker, topic: MakeTopic) -> None:
    name = topic("headers")
    headers: list[tuple[str, str | bytes | None]] = [
        *(("trace", b"1"), ("trace", b"2")),
        *(("none", None), ("empty", b"")),
    ]
    # Recent, or Kafka's retention takes them away.
    now = int(time.time() * 1000)
    client = producer(broker.bootstrap, compression_type="zstd")
    client.produce(name, b"value", b"key", headers=headers, timestamp=now)
    client.produce(name, None, b"deleted", timestamp=now + 1)
    client.produce(name, b"", None, timestamp=now - 1)
    assert client.flush(30) == 0
    frame = spark.read(subscribe=name, includeHeaders="true")
    columns = ("key", "value", "headers", "offset", "unix_millis(timestamp) AS at", "timestampType")
    rows: list[Row] = frame.selectExpr(*columns).orderBy("offset").collect()
    found = [(key, None if value is None else bytes(value)) for key, value in rows[0].headers]
    assert found == headers
    assert [(row.key, row.value, row.at, row.timestampType) for row in rows] == [
        (bytearray(b"key"), bytearray(b"value"), now, 0),
        (bytearray(b"deleted"), None, now + 1, 0),
        (None, bytearray(b""), now - 1, 0),
    ]
    assert rows[1].headers is None


def test_deleted_records_are_a_loss_unless_said_otherwise(
    spark: Spark, broker: Broker, numbered: tuple[str, Numbered]
) -> None:
    name, _ = numbered
    delete_records(broker.bootstrap, TopicPartition(name, 0, 14))

    def read(**options: Any) -> list[int]:
        return numbers(
            spark.read(subscribe=name, kafka_isolation_level="read_committed", **options)
        )

    assert read(startingOffsets="earliest") == [14, 15, 16]
    assert read(startingOffsets={name: {"0": 3}}, failOnDataLoss="false") == [14, 15, 16]
    with pytest.raises(REFUSALS, match="failOnDataLoss"):
        read(startingOffsets={name: {"0": 3}})


def test_a_topic_that_is_not_there_is_named(spark: Spark, name: MakeName) -> None:
    with pytest.raises(REFUSALS, match="UnknownTopicOrPartition"):
        numbers(spark.read(subscribe=name("absent")))
