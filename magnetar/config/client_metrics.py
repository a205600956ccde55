"""Configs of client metrics subscriptions (KIP-714): who is asked for which of its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar.config.setting import (
    INT32_MAX,
    Config,
    InvalidValue,
    integer,
    parse_integer,
    split_words,
    words,
)

INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
#: The properties of a client that a pattern may match.
_MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class ClientMetricsConfig(Config):
    """The settings of one subscription."""

    interval_ms = integer(
        300000,
        minimum=INTERVAL_MS_MIN,
        maximum=INTERVAL_MS_MAX,
        since="3.7",
        doc="How often clients push.",
    )
    match = words([], since="3.7", doc="Which clients: name=pattern, all must match.")
    metrics = words([], since="3.7", doc="Which metrics, by the beginning of their names; *: all.")


def is_interval(text: str) -> bool:
    """Return whether the text is an int32, of whatever bounds."""
    try:
        return -INT32_MAX - 1 <= parse_integer(text) <= INT32_MAX
    except InvalidValue:
        return False


def check_patterns(texts: Mapping[str, str]) -> None:
    """Raise InvalidValue unless `match`, if it is there, is a list of name=pattern."""
    for part in split_words(texts.get("match", "")):
        name, _, pattern = part.partition("=")
        try:
            # Kafka reads the pattern with Java's regular expressions. Python's refuse the same
            # mistakes, nearly. RE2 runs it; what RE2 cannot run matches no client.
            is_legal = name.strip() in _MATCHED and bool(pattern)
            re.compile(pattern)
        except re.error:
            is_legal = False
        if not is_legal:
            raise InvalidValue(f"Illegal client matching pattern: {part}")
