"""Which tests share a worker of pytest-xdist, and in what order: the same in every run.

A unit of work is what runs one after the other on one worker: the tests of a file with one kind of
broker, so that what a file prepares is prepared once for each kind; and all that needs Spark, whose
session costs more than most tests. Long units come first, so that workers end together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SPARK = "spark"
#: A client's name, of which a part is a broker's.
_NOT_A_KIND = "kafka-python"
#: Kafka's are longer, and those that start brokers of their own.
_ORDER = ("", "kafka", "magnetar")
#: What takes half a minute or more: programs of their own, brokers that are killed, browsers.
_LONG = frozenset(
    f"test_{name}.py"
    for name in (
        *("cluster", "cluster_objects", "command_line", "command_line_cluster", "compaction"),
        *("connect", "console", "console_changes", "cookbook", "documented_examples"),
        *("exactly_once_pipeline", "group_churn", "import", "large_topics", "newcomer"),
        *("sink_crashes", "sink_drivers", "speculation", "streams"),
    )
)


def unit_of(nodeid: str) -> str:
    """Return the name of the unit that a test belongs to."""
    path, _, test = nodeid.partition("::")
    if "/test_spark_" in path:
        return _SPARK
    kind = _kind_of(test)
    return f"{path}[{kind}]" if kind else path


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests unit by unit, the long ones first."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit_of(item.nodeid), []).append(item)
    return [item for unit in sorted(units, key=_rank) for item in units[unit]]


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # the library is untyped
    """Hands out units in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def _kind_of(test: str) -> str:
    parameters = re.search(r"\[(.*)\]", test)
    words = parameters[1].replace(_NOT_A_KIND, "").split("-") if parameters else []
    return next((kind for kind in ("magnetar", "kafka") if kind in words), "")


def _rank(unit: str) -> int:
    if unit == _SPARK:
        return 0
    file, _, kind = unit.rstrip("]").partition("[")
    if Path(file).name in _LONG:
        return 1
    return 2 + _ORDER.index(kind)
