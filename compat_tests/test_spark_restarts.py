"""Spark's stock connector while the broker is killed: queries that survive it, and queries that
begin again at their checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.numbered import Numbered
from compat_tests.spark import Spark, numbers

pytestmark = pytest.mark.timeout(300)
ROUNDS = 6
OFFSETS_PER_BATCH = 7
#: By default a task waits for an absent broker for minutes.
IMPATIENT = {
    "kafkaConsumer_pollTimeoutMs": "8000",
    "kafka_default_api_timeout_ms": "10000",
    "kafka_request_timeout_ms": "8000",
}


class SinkFailed(Exception):
    """What takes the batches cannot take this one."""


def write(writer: Numbered) -> list[int]:
    """Write rounds of a committed and an aborted transaction; return what is committed."""
    committed: list[int] = []
    for _ in range(ROUNDS):
        committed += range(writer.end_offset, writer.end_offset + 5)
        writer.committed(5)
        writer.aborted(3)
    return committed


class Killer:
    """Sees batches and kills the broker at some of them, once each.

    At batch 1 it is started again at once; at batch 3 the sink fails too, after it has seen the
    batch; at batch 5 the broker stays away, and the batch cannot be read.
    """

    def __init__(self, broker: Broker) -> None:
        self.seen: dict[int, list[list[int]]] = defaultdict(list)
        self._broker = broker
        self._due = {1, 3, 5}

    def see(self, batch: DataFrame, batch_id: int) -> list[int]:
        dies = batch_id in self._due
        self._due.discard(batch_id)
        if dies and batch_id != 3:
            self._broker.kill()
        if dies and batch_id == 1:
            self._broker.start()
        found = numbers(batch)
        self.seen[batch_id].append(found)
        if dies and batch_id == 3:
            self._broker.kill()
            raise SinkFailed
        return found


def test_every_record_is_in_one_batch_although_the_broker_is_killed(
    spark_session: SparkSession, own_broker: Broker, topic_on: MakeTopic, tmp_path: Path
) -> None:
    """A batch that is run again sees the same rows again; an open transaction stays open."""
    name = topic_on(own_broker, "killed")
    writer = Numbered(own_broker.bootstrap, name)
    committed = write(writer)
    still_open = list(range(writer.end_offset, writer.end_offset + 4))
    end = writer.open(4)
    spark = Spark(spark_session, own_broker.bootstrap)
    killer = Killer(own_broker)

    def run(**timeouts: str) -> None:
        reader = spark.read_stream(
            subscribe=name,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=OFFSETS_PER_BATCH,
            kafka_isolation_level="read_committed",
            **timeouts,
        )
        spark.micro_batches(reader, tmp_path, killer.see)

    with pytest.raises(StreamingQueryException, match="SinkFailed"):
        run()
    own_broker.start()
    with pytest.raises(StreamingQueryException):
        run(**IMPATIENT)
    own_broker.start()
    run()
    end(True)
    run()
    batches = [killer.seen[batch_id] for batch_id in sorted(killer.seen)]
    assert [offset for again in batches for offset in again[-1]] == committed + still_open
    assert [len(again) for again in batches[:6]] == [1, 1, 1, 2, 1, 1]
    assert killer.seen[3][0] == killer.seen[3][1]
