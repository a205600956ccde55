"""The levels of loggers, changed while the broker runs (KIP-412); the next start forgets them."""

from __future__ import annotations

import logging as levels
from collections.abc import Sequence

from magnetar.config.changes import Change, Operation
from magnetar.logging import ROOT, logger_levels, set_level
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Kafka's names of levels. Nothing is written below debug or above error here.
_LEVELS = {
    "TRACE": levels.DEBUG - 5,
    "DEBUG": levels.DEBUG,
    "INFO": levels.INFO,
    "WARN": levels.WARNING,
    "ERROR": levels.ERROR,
    "FATAL": levels.CRITICAL,
}
_NAMES = {level: name for name, level in _LEVELS.items()}


def described_levels() -> dict[str, str]:
    """Return the name of every logger's level."""
    return {name: _NAMES[level] for name, level in logger_levels().items()}


def check_node(node_id: int, name: str) -> None:
    """Raise INVALID_REQUEST unless `name` is this broker's id: loggers are of one process."""
    if name != str(node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, not {name}"
        )


def alter_levels(
    node_id: int, name: str, changes: Sequence[Change], *, validate_only: bool
) -> None:
    """Carry out the changes, all or none. Raises INVALID_REQUEST and INVALID_CONFIG."""
    check_node(node_id, name)
    known = logger_levels()
    chosen: dict[str, int | None] = {}
    for change in changes:
        if change.operation not in (Operation.SET, Operation.DELETE):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The level of a logger can be set and deleted."
            )
        if change.name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        chosen[change.name] = _level(change)
    # All changes are checked before the first is made: all or none.
    if not validate_only:
        for logger, level in chosen.items():
            set_level(logger, level)


def _level(change: Change) -> int | None:
    if change.operation == Operation.DELETE:
        if change.name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is impossible"
            )
        return None
    level = _LEVELS.get(change.value or "")
    if level is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{change.value} is no level of {change.name}. Name one of"
            f" {', '.join(sorted(_LEVELS))}.",
        )
    return level
