"""Configs of client metrics subscriptions (KIP-714): who is asked for which of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from magnetar.config.java_patterns import read_otherwise
from magnetar.config.setting import (
    Config,
    InvalidValue,
    integer,
    parse_integer,
    split_words,
    words,
)
from wire.types import INT32_MAX

#: The most characters of `metrics`, and of `match`, whose patterns each client is compared with.
METRICS_CHARACTERS_MAX, MATCH_CHARACTERS_MAX = 10_000, 300
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
    """Return whether the text is an int32, within the bounds of `interval.ms` or not."""
    try:
        return -INT32_MAX - 1 <= parse_integer(text) <= INT32_MAX
    except InvalidValue:
        return False


def check_size(texts: Mapping[str, str]) -> None:
    """Raise InvalidValue for a list that is too long."""
    for name, most in (("metrics", METRICS_CHARACTERS_MAX), ("match", MATCH_CHARACTERS_MAX)):
        if len(texts.get(name, "")) > most:
            raise InvalidValue(f"{name} of a subscription has more than {most} characters.")


def check_patterns(texts: Mapping[str, str], is_pattern: Callable[[str], bool]) -> None:
    """Raise InvalidValue unless `match`, if it is there, is a list of name=pattern."""
    for name, pattern in patterns_of(split_words(texts.get("match", ""))).items():
        if name not in _MATCHED or not pattern or not is_pattern(pattern):
            raise InvalidValue(f"Illegal client matching pattern: {name}={pattern}")
        if (characters := read_otherwise(pattern)) is not None:
            raise InvalidValue(f"Sets of characters within [] are not served: {characters}")


def patterns_of(match: Iterable[str]) -> dict[str, str]:
    """Return the pattern of each property. The last one counts if it has several, as in Kafka."""
    parts = [part.partition("=") for part in match]
    return {name.strip(): pattern for name, _, pattern in parts}
