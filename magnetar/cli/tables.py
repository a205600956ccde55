"""Tables and lists of fields on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magnetar.client.readable import one_line

_BETWEEN = "  "


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of columns as wide as their widest cell; header in capitals."""
    lines = [[name.upper() for name in header], *(list(map(one_line, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _BETWEEN.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Return one line per name and value; names in capitals."""
    shown = [(name.upper(), one_line(value)) for name, value in pairs]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name.ljust(width)}{_BETWEEN}{value}".rstrip() for name, value in shown)
