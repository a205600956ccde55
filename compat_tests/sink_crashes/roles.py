"""What Spark's processes do with a data source: plan a batch, write a task, commit, abort.

Each function is called in a fresh process, with what Spark sends to that process.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructType

from magnetar.spark import SinkError
from magnetar.spark.data_source import MagnetarDataSource, SinkWriter

__all__ = ["SinkError", "Task", "abort", "commit", "plan", "write"]

SCHEMA = StructType().add("value", StringType()).add("partition", IntegerType())
_COLUMNS = pyarrow.schema([("value", pyarrow.string()), ("partition", pyarrow.int32())])


class Task(NamedTuple):
    """An attempt at a task of a batch, as its context says."""

    spark_query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int


def plan(options: dict[str, str]) -> bytes:
    """Return the writer that Spark sends to the tasks."""
    return pickle.dumps(_writer(options))


def write(writer: bytes, task: Task, rows: list[tuple[str, int]]) -> bytes:
    """Return the commit message of a task that writes (value, partition) rows."""
    context = TaskContext()
    context._partitionId = task.partition
    context._attemptNumber = task.attempt
    context._localProperties = {
        "streaming.sql.batchId": str(task.batch_id),
        "sql.streaming.queryId": task.spark_query_id,
        "spark.jobGroup.id": task.run_id,
    }
    TaskContext._setTaskContext(context)
    loaded: SinkWriter = pickle.loads(writer)
    half = len(rows) // 2
    batches = [_arrow(rows[:half]), _arrow(rows[half:])]
    return pickle.dumps(loaded.write(iter(batches)))


def commit(options: dict[str, str], messages: list[bytes | None], batch_id: int) -> None:
    _writer(options).commit(_loaded(messages), batch_id)


def abort(options: dict[str, str], messages: list[bytes | None], batch_id: int) -> None:
    _writer(options).abort(_loaded(messages), batch_id)


def _writer(options: dict[str, str]) -> SinkWriter:
    return MagnetarDataSource(options).streamWriter(SCHEMA, False)


def _loaded(messages: list[bytes | None]) -> list[WriterCommitMessage | None]:
    return [None if message is None else pickle.loads(message) for message in messages]


def _arrow(rows: list[tuple[str, int]]) -> pyarrow.RecordBatch:
    columns = [[value for value, _ in rows], [partition for _, partition in rows]]
    return pyarrow.record_batch(columns, schema=_COLUMNS)
