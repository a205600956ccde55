"""Partitions and places in them, as people type them: `orders:0,2`, `-5m`, `s@2026-11-21`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import duration_ms

if TYPE_CHECKING:
    from magnetar.client import Client, TopicPartition
    from magnetar.client.consumer import Begin

_SELECTED = re.compile(r"(?P<topic>[^:]+)(?::(?P<partitions>\d+(?:,\d+)*))?")


def parse_begin(text: str) -> Begin:
    """Return the meaning of `beginning`, `end`, `17`, `-5`, `-5m` or `s@TIME`. Raises ValueError.

    TIME is ms since 1970, or ISO 8601; UTC unless it names a zone.
    """
    from magnetar.client.consumer import Begin
    from magnetar.client.partitions import EARLIEST, LATEST
    from magnetar.client.readable import parse_moment

    # Both kcat's words and Kafka's are accepted.
    words = {"beginning": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
    if text in words:
        return Begin(word=words[text])
    if text.startswith("s@"):
        time_text = text.removeprefix("s@")
        try:
            is_ms = time_text.isdigit()
            return Begin(timestamp=int(time_text) if is_ms else parse_moment(time_text))
        except ValueError:
            raise ValueError(
                f"{time_text!r} is neither milliseconds since 1970 nor ISO 8601"
            ) from None
    if text.startswith("-") and (ago_ms := duration_ms(text[1:])) is not None:
        # Brokers read negative times as words.
        return Begin(timestamp=max(round(time.time() * 1000) - ago_ms, 0))
    try:
        number = int(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no offset: write beginning, end, 17, -5 (the last five), -5m (since five"
            " minutes ago), s@1795273200000 or s@2026-11-21T15:00"
        ) from None
    return Begin(offset=number) if number >= 0 else Begin(before_end=-number)


def begin_of(offset: str | None, option: str) -> Begin | None:
    """Return `parse_begin` of the option's value. BadParameter names the option."""
    try:
        return None if offset is None else parse_begin(offset)
    except ValueError as mistake:
        raise click.BadParameter(f"{mistake}.", param_hint=option) from None


def selected(client: Client, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions that `orders` or `orders:0,3` name. ClientError: one does not exist."""
    from magnetar.client import ClientError

    chosen: set[TopicPartition] = set()
    for text in topics:
        found = _SELECTED.fullmatch(text)
        if found is None:
            raise ClientError(f"{text!r} is neither TOPIC nor TOPIC:PARTITION,PARTITION.")
        there = set(client.topics([found["topic"]]))
        if found["partitions"] is None:
            chosen |= there
            continue
        asked = {(found["topic"], int(index)) for index in found["partitions"].split(",")}
        if missing := sorted(asked - there):
            raise ClientError(f"{missing[0][0]} has no partition {missing[0][1]}.")
        chosen |= asked
    return sorted(chosen)
