"""Spark beside magnetar: the jars of its Kafka connector, and a sink that writes exactly once.

    from magnetar.spark import register

    register(spark)
    frame.writeStream.format("magnetar").option("queryId", "orders")...

`options`, `progress`, `rows` and `committing` are pure; `requests` and `task` talk to brokers;
`data_source` is what Spark calls. This package alone imports pyspark and confluent-kafka, and not
before they are needed: the command line, which fetches the jars, has neither. docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SinkError", "register"]


def register(session: SparkSession) -> None:
    """Make `format("magnetar")` known to a session."""
    from magnetar.spark.data_source import MagnetarDataSource

    session.dataSource.register(MagnetarDataSource)
