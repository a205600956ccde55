"""Speculation: Spark makes two attempts at a task at once, and rows are there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import speculating_job
from compat_tests.brokers import Broker
from compat_tests.clients import CONFLUENT
from compat_tests.command_line import printed
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.spark_cluster import cluster, environment
from compat_tests.speculating_job import BATCHES, ROWS_PER_TASK, TASKS

_JOB_TIMEOUT_S = 240.0


@pytest.mark.magnetar_only(reason="it has joint transactions")
def test_of_two_attempts_at_a_task_one_is_seen(
    broker: Broker, topic: MakeTopic, name: MakeName, tmp_path: Path
) -> None:
    target, query = topic("target"), name("query")
    with cluster(tmp_path) as master:
        job = [sys.executable, "-m", speculating_job.__name__]
        job += [master, broker.bootstrap, target, query]
        ended = subprocess.run(
            job,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_JOB_TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = CONFLUENT.consume(broker.bootstrap, target)
    numbers = sorted(int(read.value or b"") for read in found)
    assert numbers == list(range(BATCHES * TASKS * ROWS_PER_TASK))
    assert {read.key for read in found} == {b"0", b"1"}
    children = printed(broker, "transactions", "list", "--pattern", f"{query}~>.*")
    assert len(children) >= BATCHES * (TASKS + 1)
