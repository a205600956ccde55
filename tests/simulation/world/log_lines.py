"""The log lines of the brokers of one history: what they have told an operator."""

from __future__ import annotations

import logging as levels
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from magnetar import logging


class Line(NamedTuple):
    """One line: its level, event and fields."""

    level: int
    event: str
    fields: dict[str, object]


class LogLines:
    """Takes the place of structlog behind the broker's loggers."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def log(self, level: int, event: str, **fields: object) -> None:
        if fields.get("exc_info") is True:
            fields["exc_info"] = sys.exc_info()[1]
        self.lines.append(Line(level, event, fields))

    def errors(self) -> list[BaseException]:
        """Return the errors that were logged with a traceback."""
        return [
            error
            for line in self.lines
            if isinstance(error := line.fields.get("exc_info"), BaseException)
        ]

    def refused_streams(self) -> list[str]:
        """Return why the broker has closed connections for what came on them."""
        return [
            str(line.fields["reason"])
            for line in self.lines
            if line.event == "connection closed" and line.fields.get("exc_info") is None
        ]

    def warnings(self) -> list[Line]:
        """Return what an operator has to look at."""
        return [line for line in self.lines if line.level >= levels.WARNING]


@contextmanager
def recorded_logs(lines: LogLines) -> Iterator[None]:
    """Let the loggers of this process write to `lines`."""
    before = logging._settings.backend
    logging._settings.backend = lines
    try:
        yield
    finally:
        logging._settings.backend = before
