"""What a log lacks after a start: bytes that a crash tore, and offsets that were durable once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.directory.data_directory import Key
from logstore.segments.batch_recovery import Recovered


class Damage(NamedTuple):
    """What recovery had to cut off a log, which ends at `end_offset` now."""

    topic: str
    partition: int
    end_offset: int
    #: Cut off behind the last valid batch. A crash leaves such bytes; none was acknowledged.
    truncated_bytes: int
    #: The number of offsets that are gone although they had been durable.
    lost_offsets: int


def tell_damage(
    on_damage: Callable[[Damage], None], key: Key, journaled_end: int, recovered: Recovered
) -> None:
    """Tell what the log lacks, if anything.

    `journaled_end` is where its last batch in the journal ends: the log must reach it.
    """
    lost_offsets = max(recovered.lost_offsets, journaled_end - recovered.end_offset)
    if recovered.truncated_bytes or lost_offsets:
        end_offset, truncated_bytes = recovered.end_offset, recovered.truncated_bytes
        on_damage(Damage(*key, end_offset, truncated_bytes, lost_offsets))
