"""Logging: structured lines through structlog, readable on a terminal, JSON for machines.

    log = get_logger("server")
    log.warning("refused", client_id=client_id, client_address=address, error=error)

Levels: debug has lines for each request; info, what an operator did or should know; warning, what a
client did wrong, or what is slow; error, what stopped working. Lines go to standard error. At most
100 lines a second are written of one event, and the next line counts those left out: a client that
repeats a mistake must not fill the disk. Debug lines are asked for, and all of them are written.

structlog costs a fifth of a second to import where `rich` is installed beside it, more than all of
a broker's start, so it is imported when the first line is written, or by `prepare`.
"""

from __future__ import annotations

import logging as levels
import os
import sys
import time
from contextlib import suppress
from typing import Any, TextIO, cast

#: The name of the level of loggers that have no level of their own.
ROOT = "root"
#: Most lines of one event.
LINES_PER_SECOND_MAX = 100
#: A line shows so many characters of a text that a client chose.
SHOWN_CHARACTERS_MAX = 200


class _Settings:
    """The choices of `configure`, for all loggers."""

    def __init__(self) -> None:
        self.level = levels.INFO
        self.format = "auto"
        self.stream: TextIO | None = None
        self.backend: Any = None


_settings = _Settings()
_loggers: dict[str, Logger] = {}


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Choose for the whole process; `auto` is console on a terminal and JSON elsewhere.

    `stream` None is standard error at the time of each line. Forgets the levels of single loggers,
    and the number of lines that they wrote.
    """
    _settings.level = getattr(levels, level.upper())
    for logger in _loggers.values():
        logger.level = _settings.level
        logger.forget_lines()
    _settings.format = format
    _settings.stream = stream
    _settings.backend = None


def prepare() -> None:
    """Load what the first line needs, so that the first line stalls no request.

    Blocks, so it belongs in a thread; the interpreter gives up its lock every 5 ms.
    """
    _backend()


class Allowance:
    """The lines that one event may write in each second."""

    __slots__ = ("_count", "_second")

    def __init__(self) -> None:
        self._second = self._count = 0

    def take(self, second: int) -> int | None:
        """Return the number of lines left out since the last one; None: leave this one out too."""
        missed = 0
        if second != self._second:
            missed = max(self._count - LINES_PER_SECOND_MAX, 0)
            self._second, self._count = second, 0
        self._count += 1
        return missed if self._count <= LINES_PER_SECOND_MAX else None


class Logger:
    """Writes events with fields; below the configured level it costs one comparison."""

    __slots__ = ("_allowances", "_name", "level")

    def __init__(self, name: str, level: int) -> None:
        self._name = name
        self._allowances: dict[str, Allowance] = {}
        self.level = level

    def debug(self, event: str, **fields: object) -> None:
        """Write a line about one request or record batch; off by default."""
        self._write(levels.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write what an operator did or should know."""
        self._write(levels.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write what a client did wrong, or what is slow or was repaired."""
        self._write(levels.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Write what does not work any more."""
        self._write(levels.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """As `error`, with the traceback of the exception being handled."""
        self._write(levels.ERROR, event, {**fields, "exc_info": True})

    def forget_lines(self) -> None:
        """Allow every event all lines of this second again."""
        self._allowances.clear()

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if level < self.level:
            return
        if level > levels.DEBUG:
            allowance = self._allowances.setdefault(event, Allowance())
            missed = allowance.take(int(time.monotonic()))
            if missed is None:
                return
            if missed:
                fields["lines_not_written"] = missed
        # Where standard error is closed, or its disk is full, the line is lost, and not the
        # connection that the line is about.
        with suppress(OSError):
            _backend().log(level, event, logger=self._name, **fields)


def shown(text: str) -> str:
    """Return what a line shows of a text that a client chose."""
    return text[:SHOWN_CHARACTERS_MAX]


def get_logger(name: str) -> Logger:
    """Return the logger of one part of the broker."""
    return _loggers.setdefault(name, Logger(name, _settings.level))


def logger_levels() -> dict[str, int]:
    """Return the level of every logger by name, `root` for those that have none of their own."""
    return {ROOT: _settings.level} | {name: each.level for name, each in sorted(_loggers.items())}


def set_level(name: str, level: int | None) -> None:
    """Set the level from which on one logger writes; None stands for the level of `root`.

    The level of `root` becomes that of all that had the former one. `name` is a key of
    `logger_levels`.
    """
    if name != ROOT:
        _loggers[name].level = _settings.level if level is None else level
        return
    assert level is not None, "the root logger always has a level"
    for logger in _loggers.values():
        if logger.level == _settings.level:
            logger.level = level
    _settings.level = level


class _StandardError:
    """Standard error at the time of each write: tests and tools replace it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def _backend() -> Any:
    if _settings.backend is None:
        _settings.backend = _build_backend()
    return _settings.backend


def _build_backend() -> Any:
    import structlog

    stream = _StandardError() if _settings.stream is None else _settings.stream
    is_terminal = stream.isatty()
    as_json = _settings.format == "json" or (_settings.format == "auto" and not is_terminal)
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # As no-color.org has it; a dumb terminal shows escapes as they come.
        is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        has_colors = is_terminal and not is_plain
        shared.append(
            structlog.dev.ConsoleRenderer(
                colors=has_colors,
                exception_formatter=structlog.dev.plain_traceback,
            )
        )
    return structlog.wrap_logger(
        structlog.PrintLogger(cast(TextIO, stream)),
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(levels.NOTSET),
    )
