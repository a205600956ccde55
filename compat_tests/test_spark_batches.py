"""Spark's stock connector, batch reads: isolation, ranges of offsets, splits, headers."""

from __future__ import annotations

import pytest

from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.numbered import Numbered, three_transactions
from compat_tests.spark import Spark, numbers

pytestmark = pytest.mark.timeout(300)
COMMITTED = [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
ABORTED = [6, 7, 8, 9, 10]
ISOLATIONS = ("read_committed", "read_uncommitted")


@pytest.fixture
def numbered(broker: Broker, topic: MakeTopic) -> tuple[str, Numbered]:
    """A topic with 0-4 committed, 6-10 aborted, 12-16 committed."""
    name = topic("numbered")
    return name, three_transactions(broker.bootstrap, name)


def test_the_isolation_level_decides_what_is_read(
    spark: Spark, numbered: tuple[str, Numbered]
) -> None:
    """Open transactions and what comes after them are read uncommitted only."""
    name, writer = numbered
    end = writer.open(2)
    writer.plain(1)

    def read(isolation: str) -> list[int]:
        return numbers(spark.read(subscribe=name, kafka_isolation_level=isolation))

    assert read("read_committed") == COMMITTED
    assert read("read_uncommitted") == sorted(COMMITTED + ABORTED) + [18, 19, 20]
    end(True)
    assert read("read_committed") == [*COMMITTED, 18, 19, 20]
