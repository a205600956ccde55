"""ListOffsets: earliest, latest, by timestamp, the largest timestamp; the same through Java's
tool.
"""

from __future__ import annotations

import pytest

from compat_tests import tool_box
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.raw import Connection, batch

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
#: 2024-01-01, a time no test runs at.
START_MS = 1_704_067_200_000


@pytest.fixture
def timed(broker: Broker, topic: MakeTopic) -> str:
    """Ten batches of two records, one second apart, except that the sixth is the newest."""
    # Retention, which looks every five minutes, would take them.
    orders = topic("timed", retention_ms="-1")
    with Connection(broker.bootstrap) as connection:
        for n in range(10):
            timestamp_ms = START_MS + (100 if n == 6 else n) * 1000
            records = batch([b"a", b"b"], timestamp_ms=timestamp_ms)
            assert connection.produce(orders, records).base_offset == 2 * n
    return orders


@pytest.mark.parametrize(
    ("asked_ms", "expected"),
    [
        (EARLIEST, (-1, 0)),
        (LATEST, (-1, 20)),
        (START_MS - 1, (START_MS, 0)),
        (START_MS, (START_MS, 0)),
        (START_MS + 1, (START_MS + 1000, 2)),
        (START_MS + 5000, (START_MS + 5000, 10)),
        (START_MS + 5001, (START_MS + 100_000, 12)),
        (START_MS + 9000, (START_MS + 100_000, 12)),
        (START_MS + 100_001, (-1, -1)),
    ],
)
def test_an_offset_is_found_by_its_time(
    broker: Broker, timed: str, asked_ms: int, expected: tuple[int, int]
) -> None:
    with Connection(broker.bootstrap) as connection:
        assert connection.list_offset(timed, asked_ms) == (0, *expected)


def test_the_largest_timestamp_is_found(broker: Broker, timed: str) -> None:
    with Connection(broker.bootstrap) as connection:
        code, timestamp_ms, offset = connection.list_offset(timed, MAX_TIMESTAMP, version=7)
    assert (code, timestamp_ms) == (0, START_MS + 100_000)
    assert offset in (12, 13)


def test_java_asks_the_same(broker: Broker, timed: str) -> None:
    for time, expected in (("-1", "20"), ("-2", "0"), (str(START_MS + 1), "2")):
        printed = tool_box.run(
            "GetOffsetShell",
            *("--bootstrap-server", broker.bootstrap, "--topic", timed, "--time", time),
        )
        assert printed.strip() == f"{timed}:0:{expected}"
