"""Many topics at once: stored by one transaction of the catalog, their logs opened together.

Each transaction, and each opening, waits for a sync or for the store that nodes share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from magnetar.config.topic import TopicConfig
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Partition, Placement
from magnetar.storage.logs import Logs
from magnetar.storage.topic import already_exists, in_parts, opening
from wire.errors import KafkaError

#: Partitions that are opened together.
_OPENED_AT_ONCE = 500


class ToOpen(NamedTuple):
    """A topic, its settings, and from which partition on its logs are to be opened."""

    row: TopicRow
    settings: TopicConfig
    first: int = 0


class _Piece(NamedTuple):
    """Partitions of one topic, from `begin` to `end` (exclusive)."""

    number: int
    begin: int
    end: int


def store_topics(catalog: Catalog, rows: Sequence[TopicRow]) -> dict[str, KafkaError]:
    """Write topics into the catalog; return why some are refused, by their names. Blocks."""
    try:
        return {name: already_exists(name) for name in catalog.add_topics(rows)}
    except KafkaError as refusal:
        if len(rows) == 1 or isinstance(refusal, CatalogUnavailable):
            return {row.name: refusal for row in rows}
    # The text of one cannot be kept there: that one is refused alone.
    return {name: why for row in rows for name, why in store_topics(catalog, [row]).items()}


async def open_partitions(
    logs: Logs, placement: Placement, topics: Sequence[ToOpen]
) -> list[list[Partition]]:
    """Return the partitions of each of these topics, as this node knows them, its own open.

    Others have their turn in between.
    """
    found: list[list[Partition]] = [[] for _ in topics]
    counted = ((piece, piece.end - piece.begin) for piece in _pieces(topics))
    for part in in_parts(counted, _OPENED_AT_ONCE):
        opened = await logs.open_together(
            opening(topics[number].row, index, topics[number].settings)
            for number, begin, end in part
            for index in placement.led_here(topics[number].row.leaders, begin, end)
        )
        each = iter(opened)
        for number, begin, end in part:
            found[number] += placement.joined(topics[number].row.leaders, begin, end, each)
    return found


def _pieces(topics: Sequence[ToOpen]) -> Iterator[_Piece]:
    for number, (row, _, first) in enumerate(topics):
        for begin in range(first, row.partition_count, _OPENED_AT_ONCE):
            yield _Piece(number, begin, min(begin + _OPENED_AT_ONCE, row.partition_count))
