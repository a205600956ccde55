"""A sink for Spark that writes exactly once: `format("magnetar")`.

    from magnetar.spark import register

    register(spark)
    frame.writeStream.format("magnetar").option("queryId", "orders")...

Spark calls `data_source`. `options`, `progress`, `rows` and `committing` are pure; `cluster`,
`query_parent` and `task` talk to brokers. This package alone imports pyspark and confluent-kafka.
See docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SinkError", "register"]


def register(session: SparkSession) -> None:
    """Make `format("magnetar")` known to a session."""
    try:
        from magnetar.spark.data_source import of_session
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{__name__} needs {missing.name}: pip install 'magnetar[spark]'", name=missing.name
        ) from None

    session.dataSource.register(of_session())
