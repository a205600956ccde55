"""A Spark session on this machine with the connector, and reading topics with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from magnetar.spark import register

VERSION = "4.0.0"
_LOGGING = Path(__file__).with_name("log4j2.properties")
#: Two tasks at a time, each tried four times: in local mode Spark would give up at a first failure.
_MASTER = "local[2,4]"
_TELL_EVERY_S = 3.0


def start_session(directory: Path) -> SparkSession:
    """Start a JVM that knows the sink; its log, and its files, go below `directory`."""
    java_options = (
        "-XX:+UseSerialGC",
        f"-Dlog4j2.configurationFile=file:{_LOGGING}",
        f"-Dmagnetar.spark.log={directory / 'spark.log'}",
    )
    settings = {
        "spark.master": _MASTER,
        "spark.app.name": "magnetar examples",
        "spark.jars": _jars(),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.local.dir": str(directory / "spark-local"),
        "spark.sql.warehouse.dir": str(directory / "spark-warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # For thousands of small files: the driver lists them, and each task reads many.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.files.openCostInBytes": "65536",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Tasks run where this runs.
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    register(session)
    return session


def _jars() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(cache) / "magnetar" / f"spark-{VERSION}"
    command = [sys.executable, "-m", "magnetar", "spark-jars", "--spark", VERSION, str(directory)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@contextmanager
def working(spark: SparkSession, report: Callable[[str], None]) -> Iterator[None]:
    """Print now and then what Spark works on, while the block runs."""
    tracker = spark.sparkContext.statusTracker()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_TELL_EVERY_S):
            for stage_id in tracker.getActiveStageIds():
                if (stage := tracker.getStageInfo(stage_id)) is not None:
                    done = f"{stage.numCompletedTasks} of {stage.numTasks} tasks done"
                    report(f"Spark works on stage {stage_id}: {done}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def read_topic(
    spark: SparkSession, bootstrap_servers: str, topic: str, isolation: str, **options: Any
) -> DataFrame:
    """Return all records that a topic has now; `isolation` is Kafka's isolation.level."""
    reader = spark.read.format("kafka").options(**options)
    reader = reader.option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("kafka.isolation.level", isolation)
    return reader.option("subscribe", topic).load()
