"""Tables, and times as people type them. What words numbers get: `magnetar.client.readable`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from magnetar.client.readable import ABSENT, count, duration, known, moment, size

__all__ = [
    "ABSENT",
    "count",
    "duration",
    "fields",
    "known",
    "moment",
    "parse_moment",
    "size",
    "table",
]

_BETWEEN = "  "


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of columns as wide as their widest cell; header in capitals."""
    lines = [[name.upper() for name in header], *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _BETWEEN.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Return one line per name and value; names in capitals."""
    shown = [(name.upper(), value) for name, value in pairs]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name.ljust(width)}{_BETWEEN}{value}".rstrip() for name, value in shown)


def parse_moment(text: str) -> int:
    """Return ms since 1970 of an ISO 8601 time; without a zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    # Not the machine's zone: a command should mean the same on every machine, as its output does.
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
