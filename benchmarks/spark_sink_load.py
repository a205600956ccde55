"""What Spark's sinks take in: its own, at least once, and on magnetar the exactly-once one beside
it, with the same rows; and how long the decision over the votes of eight tasks takes.
"""

from __future__ import annotations

import time
from statistics import median

from confluent_kafka import Producer

from benchmarks.spark_load import session
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from magnetar.spark import register
from magnetar.spark.cluster import Cluster
from magnetar.spark.committing import commit_batch
from magnetar.spark.progress import Progress
from magnetar.spark.query_parent import QueryParent

_PARTITIONS = 4
_RECORD_BYTES = (1000, 100)
#: Of them, before the write that counts.
_WARM_UP_PARTS = 10
_TASKS = 2
_SINKS = {"kafka": "Spark's own sink", "magnetar": "the exactly-once sink"}
_VOTES = 8
_DECISIONS = 9


def measure(broker: Broker, records: int) -> dict[Row, float]:
    """Write `records` of each size through each sink that the broker can serve."""
    sinks = ["kafka", "magnetar"] if broker.kind == "magnetar" else ["kafka"]
    found = {}
    for size_bytes in _RECORD_BYTES:
        for sink in sinks:
            topic = f"{sink}-{size_bytes}"
            create_topic(broker.bootstrap, topic, _PARTITIONS)
            _write(broker, sink, topic, records // _WARM_UP_PARTS, size_bytes)
            took_s = _write(broker, sink, topic, records, size_bytes)
            row = Row(f"Spark writes {records:,} of {size_bytes} B: {_SINKS[sink]}", "MB/s", True)
            found[row] = records * size_bytes / took_s / 1e6
    if "magnetar" in sinks:
        found[Row(f"deciding over {_VOTES} votes, p50", "ms", False)] = _decision_ms(broker)
    return found


def _write(broker: Broker, sink: str, topic: str, records: int, size_bytes: int) -> float:
    """Return the seconds that a batch job takes, from its start to its end."""
    spark = session()
    register(spark)
    value = f"repeat('x', {size_bytes} - 10) || lpad(CAST(id AS string), 10, '0') AS value"
    frame = spark.range(0, records, numPartitions=_TASKS).selectExpr(value)
    writer = frame.write.format(sink).mode("append").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    began_at = time.perf_counter()
    writer.save()
    return time.perf_counter() - began_at


def _decision_ms(broker: Broker) -> float:
    """Return the median of what a driver's commit takes, all its requests together."""
    create_topic(broker.bootstrap, "votes", _VOTES)
    with Cluster(broker.bootstrap, round(TIMEOUT_S * 1000)) as cluster:
        separator = cluster.promises().separator
        cluster.provide_progress_topic()
        parent = QueryParent(cluster, "votes")
        took = []
        for number in range(_DECISIONS):
            children = {_vote(broker, f"votes{separator}{number}.{n}") for n in range(_VOTES)}
            began_at = time.perf_counter()
            batch = Progress(number, None, None, None, rows=0)
            assert commit_batch(parent, batch, children, lambda _: False)
            took.append((time.perf_counter() - began_at) * 1000)
    return median(took)


def _vote(broker: Broker, child: str) -> str:
    """Write to all partitions as this child, and vote; return the child."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": child})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in range(_VOTES):
        producer.produce("votes", b"vote", partition=partition)
    producer.commit_transaction(TIMEOUT_S)
    return child
