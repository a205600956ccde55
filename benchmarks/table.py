"""Results by row and broker, and their table: Kafka, magnetar, and how many times better magnetar
is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """One thing measured. `more_is_better` says which way the ratio goes."""

    name: str
    unit: str
    more_is_better: bool


class Results:
    """Every round's figures; the table shows the median of the rounds."""

    def __init__(self) -> None:
        self._found: dict[Row, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, kind: str, figures: Mapping[Row, float]) -> None:
        for row, value in figures.items():
            self._found[row][kind].append(value)

    def table(self) -> str:
        """Return the table as Markdown. A ratio above 1 is in magnetar's favour."""
        lines = [
            "| measured | unit | Apache Kafka | magnetar | magnetar is better by |",
            "|---|---|---:|---:|---:|",
        ]
        for row, found in self._found.items():
            kafka, magnetar = (_middle(found.get(kind)) for kind in ("kafka", "magnetar"))
            ratio = _ratio(row, kafka, magnetar)
            cells = (row.name, row.unit, _figure(kafka), _figure(magnetar), ratio)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def _middle(values: list[float] | None) -> float | None:
    return median(values) if values else None


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ratio(row: Row, kafka: float | None, magnetar: float | None) -> str:
    if kafka is None or magnetar is None or min(kafka, magnetar) <= 0:
        return "-"
    return f"{magnetar / kafka if row.more_is_better else kafka / magnetar:.2f}×"
