"""The word count of docs/tutorials/spark_word_count.md counts each word once."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests import documents
from compat_tests.brokers import Broker
from compat_tests.command_line import output
from compat_tests.spark import Spark

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.magnetar_only(reason="Spark's sink needs joint transactions"),
]
ADDRESS = "127.0.0.1:9092"


def test_the_words_are_counted_once_however_often_the_job_runs(
    broker: Broker, spark: Spark, tmp_path: Path
) -> None:
    (program,) = documents.blocks("docs/tutorials/spark_word_count.md", "python")
    known = {"spark": spark.session, "checkpoint": str(tmp_path / "checkpoint")}
    exec(program.replace(ADDRESS, broker.bootstrap), known)  # noqa: S102  # our own document
    read = ("consume", "counts", "--exit", "--format", "%k %s\\n")
    counts = sorted(output(broker, *read).decode().splitlines())
    assert counts == ["attract 1", "likes 2", "opposites 1", "repel 1"]
