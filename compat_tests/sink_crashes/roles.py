"""What Spark's processes do with a data source: plan a batch, write a task, commit, abort.

Each function is called in a fresh process, with what Spark sends to that process.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructType

from magnetar.spark import SinkError
from magnetar.spark.data_source import MagnetarDataSource, SinkWriter

__all__ = ["SinkError", "Task", "abort", "commit", "commit_job", "plan", "plan_job", "write"]

SCHEMA = StructType().add("value", StringType()).add("partition", IntegerType())
_COLUMNS = pyarrow.schema([("value", pyarrow.string()), ("partition", pyarrow.int32())])


class Task(NamedTuple):
    """An attempt at a task of a batch, as its context says."""

    spark_query_id: str | None
    """None: of a batch job."""
    run_id: str
    batch_id: int
    partition: int
    attempt: int


def plan(options: dict[str, str], session: str) -> bytes:
    """Return the writer that Spark sends to the tasks of a stream's batch."""
    return pickle.dumps(_writer(options, session))


def plan_job(options: dict[str, str]) -> bytes:
    """Return the writer that Spark sends to the tasks of a batch job, and to its commit."""
    return pickle.dumps(MagnetarDataSource(options).writer(SCHEMA, False))


def write(writer: bytes, task: Task, rows: list[tuple[str, int]], pause_s: float = 0.0) -> bytes:
    """Return the commit message of a task that writes (value, partition) rows, half of them after a
    pause."""
    context = TaskContext()
    context._partitionId = task.partition
    context._attemptNumber = task.attempt
    context._localProperties = {}
    if task.spark_query_id is not None:
        context._localProperties = {
            "streaming.sql.batchId": str(task.batch_id),
            "sql.streaming.queryId": task.spark_query_id,
            "spark.jobGroup.id": task.run_id,
        }
    TaskContext._setTaskContext(context)
    loaded: SinkWriter = pickle.loads(writer)
    half = len(rows) // 2

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield _arrow(rows[:half])
        time.sleep(pause_s)
        yield _arrow(rows[half:])

    return pickle.dumps(loaded.write(batches()))


def commit(
    options: dict[str, str], session: str, messages: list[bytes | None], batch_id: int
) -> None:
    _writer(options, session).commit(_loaded(messages), batch_id)


def commit_job(writer: bytes, messages: list[bytes | None]) -> list[str]:
    """Return what the commit of a batch job warns of."""
    told: list[str] = []
    handler = logging.Handler()

    def keep(record: logging.LogRecord) -> None:
        told.append(record.getMessage())

    handler.emit = keep  # type: ignore[method-assign]  # of this one handler, not of its class
    logging.getLogger("magnetar.spark").addHandler(handler)
    loaded: SinkWriter = pickle.loads(writer)
    loaded.commit(_loaded(messages))
    return told


def abort(
    options: dict[str, str], session: str, messages: list[bytes | None], batch_id: int
) -> None:
    _writer(options, session).abort(_loaded(messages), batch_id)


def _writer(options: dict[str, str], session: str) -> SinkWriter:
    source = MagnetarDataSource(options)
    source.session = session
    return source.streamWriter(SCHEMA, False)


def _loaded(messages: list[bytes | None]) -> list[WriterCommitMessage | None]:
    return [None if message is None else pickle.loads(message) for message in messages]


def _arrow(rows: list[tuple[str, int]]) -> pyarrow.RecordBatch:
    columns = [[value for value, _ in rows], [partition for _, partition in rows]]
    return pyarrow.record_batch(columns, schema=_COLUMNS)
