"""Spark's stock connector: a batch job reads what is committed, beside aborted transactions."""

from __future__ import annotations

import atexit
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks import librdkafka
from benchmarks.subjects import cpu_seconds
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from spark_examples.session import read_topic, start_session

_PARTITIONS = 4
_RECORD_BYTES = 100
_RECORDS_EACH = 10_000
#: Reads before the one that counts: a JVM compiles what it runs often.
_WARM_UP = 2


def measure(broker: Broker, records: int) -> dict[Row, float]:
    """Write `records` in transactions, every tenth aborted; read the committed ones with Spark."""
    create_topic(broker.bootstrap, "spark", _PARTITIONS)
    committed = librdkafka.produce_in_transactions(
        broker.bootstrap,
        "spark",
        records // _RECORDS_EACH,
        _RECORDS_EACH,
        _RECORD_BYTES,
        _PARTITIONS,
    )
    spark = session()
    for _ in range(_WARM_UP):
        _read(spark, broker, committed)
    cpu_before = cpu_seconds(broker.pid)
    took_s = _read(spark, broker, committed)
    cpu_s = cpu_seconds(broker.pid) - cpu_before
    what = f"Spark reads {committed:,} of {records:,} records of 100 B, read_committed"
    return {
        Row(what, "records/s", True): committed / took_s,
        Row("broker CPU to give out a million of them", "s", False): cpu_s / committed * 1e6,
    }


def _read(spark: SparkSession, broker: Broker, committed: int) -> float:
    """Return the seconds it took; every record is looked at."""
    frame = read_topic(spark, broker.bootstrap, "spark", "read_committed")
    began_at = time.perf_counter()
    (found,) = frame.selectExpr("count(*) AS records", "sum(length(value)) AS bytes").collect()
    took_s = time.perf_counter() - began_at
    assert (found.records, found.bytes) == (committed, committed * _RECORD_BYTES), found
    return took_s


@cache
def session() -> SparkSession:
    """The one JVM of all rounds and both brokers; it ends with this process."""
    files = TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True)
    atexit.register(files.cleanup)
    return start_session(Path(files.name))
