"""Spark's stock connector, micro-batches: what each one ranges over and sees, and what is seen
again after a restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.numbered import Numbered, three_transactions
from compat_tests.offsets import delete_records
from compat_tests.spark import Batch, Spark, numbers, splits

pytestmark = pytest.mark.timeout(300)


def stream(spark: Spark, topic: str, **options: Any) -> DataFrame:
    """Return a committed stream of `topic` from its beginning."""
    defaults = {"startingOffsets": "earliest", "kafka_isolation_level": "read_committed"}
    return spark.read_stream(subscribe=topic, **{**defaults, **options})


def batches(found: dict[int, Batch]) -> list[Batch]:
    """Return the batches in order; their ids must have no gap."""
    first = min(found)
    assert sorted(found) == list(range(first, first + len(found)))
    return [found[batch_id] for batch_id in sorted(found)]


@pytest.mark.parametrize("offset_reader", ["admin", "consumer"], indirect=True)
def test_a_batch_ends_after_so_many_offsets_whatever_lies_there(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path, offset_reader: str
) -> None:
    name = topic("limited")
    three_transactions(broker.bootstrap, name)
    found = spark.micro_batches(stream(spark, name, maxOffsetsPerTrigger=3), tmp_path)
    assert batches(found) == [
        Batch(None, 3, [0, 1, 2]),
        Batch(3, 6, [3, 4]),
        Batch(6, 9, []),
        Batch(9, 12, []),
        Batch(12, 15, [12, 13, 14]),
        Batch(15, 18, [15, 16]),
    ]


def test_uncommitted_batches_see_aborted_records(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("uncommitted")
    writer = three_transactions(broker.bootstrap, name)
    writer.open(2)
    reader = stream(spark, name, maxOffsetsPerTrigger=7, kafka_isolation_level="read_uncommitted")
    assert batches(spark.micro_batches(reader, tmp_path)) == [
        Batch(None, 7, [0, 1, 2, 3, 4, 6]),
        Batch(7, 14, [7, 8, 9, 10, 12, 13]),
        Batch(14, 20, [14, 15, 16, 18, 19]),
    ]


@pytest.mark.parametrize("offset_reader", ["admin", "consumer"], indirect=True)
def test_an_open_transaction_holds_the_end(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path, offset_reader: str
) -> None:
    """Nothing behind its first record is read until it ends, committed or aborted."""
    name = topic("held")
    writer = Numbered(broker.bootstrap, name)
    writer.committed(3)
    first, second = writer.open(2), writer.open(2)
    writer.plain(2)

    def run() -> list[Batch]:
        reader = stream(spark, name, maxOffsetsPerTrigger=4)
        return batches(spark.micro_batches(reader, tmp_path))

    assert run() == [Batch(None, 4, [0, 1, 2])]
    second(False)
    first(True)
    end = writer.open(1)
    assert run() == [Batch(4, 8, [4, 5]), Batch(8, 12, [8, 9])]
    end(False)
    assert run() == [Batch(12, 14, [])]


def test_available_now_ends_where_the_topic_ended_when_it_began(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("now")
    writer = Numbered(broker.bootstrap, name)
    writer.committed(4)

    def run(during: int) -> list[Batch]:
        reader = stream(spark, name, maxOffsetsPerTrigger=3)
        writes = [during]

        def write_and_see(batch: DataFrame, _: int) -> list[int]:
            if writes:
                writer.committed(writes.pop())
            return numbers(batch)

        return batches(spark.micro_batches(reader, tmp_path, write_and_see))

    assert run(2) == [Batch(None, 3, [0, 1, 2]), Batch(3, 5, [3])]
    assert run(1) == [Batch(5, 8, [5, 6])]
    assert run(1) == [Batch(8, 10, [8])]


def test_tasks_of_a_batch_begin_anywhere(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Some begin at markers, some at aborted records, some in the middle of a stored batch."""
    name = topic("tasks")
    three_transactions(broker.bootstrap, name)
    expected = {
        "minPartitions": [[0, 1], [2, 3], [4], [12, 13], [14, 15], [16], [], [], []],
        "maxRecordsPerPartition": [[0, 1, 2], [3, 4], [12, 13], [14, 15, 16], []],
    }
    for option, value in (("minPartitions", 9), ("maxRecordsPerPartition", 4)):
        reader = stream(spark, name, **{option: value})
        run = spark.micro_batches(reader, tmp_path / option, lambda batch, _: splits(batch))
        assert batches(run) == [Batch(None, 18, expected[option])]


def test_a_stream_starts_at_an_offset_at_the_end_or_at_a_time(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("starts")
    writer = three_transactions(broker.bootstrap, name)
    starts: list[dict[str, Any]] = [
        {"startingOffsets": {name: {"0": 15}}},
        {"startingOffsets": "latest"},
        {"startingTimestamp": 1},
    ]

    def run() -> list[list[Batch]]:
        return [
            batches(spark.micro_batches(stream(spark, name, **options), tmp_path / str(number)))
            for number, options in enumerate(starts)
        ]

    everything = [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
    assert run() == [
        [Batch(None, 18, [15, 16])],
        [Batch(None, 18, [])],
        [Batch(None, 18, everything)],
    ]
    writer.committed(1)
    assert run() == [[Batch(18, 20, [18])]] * 3


def test_a_stream_that_jumps_over_deleted_records_fails_unless_told_otherwise(
    spark: Spark, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("loss")
    writer = Numbered(broker.bootstrap, name)
    writer.plain(3)
    assert batches(spark.micro_batches(stream(spark, name), tmp_path)) == [
        Batch(None, 3, [0, 1, 2])
    ]
    writer.committed(4)
    delete_records(broker.bootstrap, TopicPartition(name, 0, 5))
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        spark.micro_batches(stream(spark, name), tmp_path)
    reader = stream(spark, name, failOnDataLoss="false")
    assert batches(spark.micro_batches(reader, tmp_path)) == [Batch(3, 8, [5, 6])]
