"""The records of a whole partition, one by one, for tests that look at what a log has."""

from __future__ import annotations

from collections.abc import Iterator

from logstore.partition.reader import LogReader, items_of
from wire.records import BatchHeader, Marker, Record


def records_from(reader: LogReader, offset: int) -> Iterator[tuple[BatchHeader, Record | Marker]]:
    """Yield every record from `offset` on, and every marker, in order, with its batch. Blocks."""
    for header, batch in reader.iterate_batches_from(offset):
        for item in items_of(header, batch):
            if isinstance(item, Marker) or item.offset >= offset:
                yield header, item
