"""`python -m compat_tests.speculating_job MASTER BOOTSTRAP TOPIC QUERY`: writes batches of which
each has a task that does not end, so that Spark begins another attempt at it.

Values are numbers from 0 on, each once; keys say which attempt wrote the record.
"""

from __future__ import annotations

import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from compat_tests.spark_cluster import JAVA_OPTIONS
from magnetar.spark import register

BATCHES, TASKS = 2, 4
ROWS_PER_TASK = 3_000
_SLOW_TASK = 1
#: Longer than everything else takes; the attempt is killed when another has ended.
_SLEEP_S = 100.0
_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Rows come to the sink before the last one does: its transaction is open then.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.buffer.size": "1024",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
}


def attempt(number: int) -> str:
    """Return which attempt at its task this is; the first one at the slow task hangs at its end."""
    context = TaskContext.get()
    assert context is not None
    is_last = number % ROWS_PER_TASK == ROWS_PER_TASK - 1
    if is_last and context.partitionId() == _SLOW_TASK and context.attemptNumber() == 0:
        time.sleep(_SLEEP_S)
    return str(context.attemptNumber())


def main(master: str, bootstrap: str, topic: str, query: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    rows_per_batch = TASKS * ROWS_PER_TASK
    for batch in range(BATCHES):
        numbers = session.range(
            batch * rows_per_batch, (batch + 1) * rows_per_batch, numPartitions=TASKS
        )
        rows = numbers.select(
            numbers.id.cast("string").alias("value"), udf(attempt)(numbers.id).alias("key")
        )
        writer = rows.write.format("magnetar").mode("append")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        writer.option("queryId", query).option("batchId", batch).save()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
