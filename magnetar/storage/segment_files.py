"""The record batches of a segment file, one after the other, and the places where it is damaged.

For files that are not being written: those of a stopped broker, or copies. The file is mapped, so
memory does not grow with its size. Not here: what the batches mean.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wire.errors import WireError
from wire.records import BATCH_OVERHEAD, BatchHeader, crc_ok
from wire.records.header import MAGIC


class Batch(NamedTuple):
    """One whole batch, and its position in the file."""

    position: int
    header: BatchHeader
    data: memoryview


class Damage(NamedTuple):
    """A damaged place. Nothing behind it can be read, unless `is_passable`."""

    position: int
    reason: str
    is_passable: bool = False


def segments(directory: Path) -> list[Path]:
    """Return the segments of a partition, in the order of their offsets."""
    return sorted(path for path in directory.glob("*.log") if path.stem.isdigit())


def read_batches(path: Path) -> Iterator[Batch | Damage]:
    """Yield the batches of a segment, and a Damage for one that is torn, invalid or out of order.

    Reading goes on behind a batch with a wrong CRC or base offset, and ends at any other damage.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        # An empty file cannot be mapped.
        if not size:
            return
        # The map outlives the file object, and goes with the last batch that points into it.
        view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    position, next_offset = 0, -1
    while position < size:
        header = _header(view, position)
        if isinstance(header, Damage):
            yield header
            return
        end = position + header.size_bytes
        data = view[position:end]
        if not crc_ok(data):
            yield Damage(position, "the CRC does not match", is_passable=True)
        if header.base_offset < next_offset:
            reason = f"base offset {header.base_offset} where at least {next_offset} is due"
            yield Damage(position, reason, is_passable=True)
        yield Batch(position, header, data)
        next_offset = header.next_offset
        position = end


def _header(view: memoryview, position: int) -> BatchHeader | Damage:
    remaining = len(view) - position
    if remaining < BATCH_OVERHEAD:
        return Damage(position, f"{remaining} bytes where a batch has at least {BATCH_OVERHEAD}")
    try:
        header = BatchHeader.parse(view, position)
    except WireError as error:
        # A file that was extended and not written, as a crash leaves it, ends in zeros.
        if not any(view[position : position + BATCH_OVERHEAD]):
            return Damage(position, "zeros where a batch should begin")
        return Damage(position, str(error))
    if header.magic != MAGIC:
        return Damage(position, f"magic {header.magic}, only {MAGIC} is read")
    if header.size_bytes > remaining:
        return Damage(position, f"{remaining} bytes of a batch of {header.size_bytes}")
    return header
