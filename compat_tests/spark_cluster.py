"""A cluster of Spark's own: a master and two workers, processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from compat_tests.waiting import eventually
from tools.ports import free_port
from tools.reference_kafka.process import answers, end

#: One machine by two names: Spark runs two attempts at a task on different ones only.
_HOSTS = ("127.0.0.1", "localhost")
_CORES, _MEMORY = "2", "512m"
_STOP_TIMEOUT_S = 20.0
#: They live for seconds.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Start it and return its address; what it writes goes below `directory`."""
    port = free_port()
    address = f"spark://{_HOSTS[0]}:{port}"
    with ExitStack() as stack:

        def start(role: str, *arguments: str) -> None:
            spark_class = Path(pyspark.__file__).with_name("bin") / "spark-class"
            name = f"org.apache.spark.deploy.{role.lower()}.{role}"
            with (directory / f"{role}.log").open("ab") as log:
                process = subprocess.Popen(
                    [str(spark_class), name, "--webui-port", "0", *arguments],
                    env=environment(),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            stack.callback(end, process, signal.SIGTERM, _STOP_TIMEOUT_S)

        start("Master", "--host", _HOSTS[0], "--port", str(port))
        eventually(lambda: answers(port))
        for host in _HOSTS:
            resources = ("--cores", _CORES, "--memory", _MEMORY)
            work = ("--work-dir", str(directory / host))
            start("Worker", "--host", host, *resources, *work, address)
        yield address


def environment() -> dict[str, str]:
    """Return the environment of its processes, and of those that give it work."""
    return {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_LOCAL_IP": _HOSTS[0],
        "PYSPARK_PYTHON": sys.executable,
    }
