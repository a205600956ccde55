"""What a log lacks after a start: bytes that a crash tore, and offsets that were durable once."""

from __future__ import annotations

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


def damage_of(key: Key, recovered: Recovered | None, journaled_end: int) -> Damage | None:
    """Return what the log lacks; None: nothing, or it needed no recovery.

    `journaled_end` is where its last batch in the journal ends: the log must reach it.
    """
    if recovered is None:
        return None
    lost_offsets = max(recovered.lost_offsets, journaled_end - recovered.end_offset)
    if not (recovered.truncated_bytes or lost_offsets):
        return None
    return Damage(*key, recovered.end_offset, recovered.truncated_bytes, lost_offsets)
