"""What a log lacks after a start: bytes that a crash tore, and offsets that were durable once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from logstore.directory.data_directory import DataDirectory, Key
from logstore.segments.batch_recovery import Recovered


class Damage(NamedTuple):
    """What a log lacks, which ends at `end_offset` now."""

    topic: str
    partition: int
    end_offset: int
    #: Cut off behind the last valid batch. A crash leaves such bytes; none was acknowledged.
    truncated_bytes: int
    #: The number of offsets that are gone although they had been durable.
    lost_offsets: int
    #: The offsets that are gone with the first segments, although no deletion of them is known.
    lost_at_start: range = range(0)


def tell_damage(
    on_damage: Callable[[Damage], None],
    key: Key,
    journaled_end: int,
    data: DataDirectory,
    start_offsets: Mapping[Key, int] | None,
    recovered: Recovered,
) -> None:
    """Tell what the log lacks, if anything.

    `journaled_end` is where its last batch in the journal ends: the log must reach it.
    `start_offsets`: where logs begin by the checkpoint, which is lost if this is None.
    """
    lost_offsets = max(recovered.lost_offsets, journaled_end - recovered.end_offset)
    lost_at_start = range(0)
    if start_offsets is not None:
        lost_at_start = _lost_at_start(data, key, start_offsets.get(key, 0), recovered)
    if recovered.truncated_bytes or lost_offsets or lost_at_start:
        end_offset, truncated_bytes = recovered.end_offset, recovered.truncated_bytes
        on_damage(Damage(*key, end_offset, truncated_bytes, lost_offsets, lost_at_start))


def _lost_at_start(data: DataDirectory, key: Key, start_offset: int, recovered: Recovered) -> range:
    first_offset = recovered.first_offset
    if first_offset is None or first_offset <= start_offset:
        return range(0)
    # In a directory of Kafka's the checkpoint of start offsets does not name each log that is
    # trimmed. The leader epochs tell.
    told = data.told_start(key)
    return range(first_offset if told is None else max(told, start_offset), first_offset)
