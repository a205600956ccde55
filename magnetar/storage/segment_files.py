"""The record batches of a segment file on the disk, one after the other, and its damages.

For files that no process writes to: those of a stopped broker, or a copy. The file is mapped, so
that a large one takes no more memory. Not here: the meaning of the batches.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wire.errors import WireError
from wire.records import BATCH_OVERHEAD, BatchHeader, crc_ok

_MAGIC = 2
_MAGIC_AT = 16


class Batch(NamedTuple):
    """One whole batch and where it begins in its file."""

    position: int
    header: BatchHeader
    data: memoryview


class Damage(NamedTuple):
    """A place where a file is damaged; nothing behind it can be read, unless `is_passable`."""

    position: int
    reason: str
    is_passable: bool = False


def segments(directory: Path) -> list[Path]:
    """Return the segments of a partition, in the order of their offsets."""
    return sorted(path for path in directory.glob("*.log") if path.stem.isdigit())


def read_batches(path: Path) -> Iterator[Batch | Damage]:
    """Yield the batches of a segment; a Damage where one is not whole, not valid, out of order.

    It goes on after a batch whose CRC alone is wrong, and ends at any other damage.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        # An empty file cannot be mapped.
        if not size:
            return
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
    magic = view[position + _MAGIC_AT]
    try:
        header = BatchHeader.parse(view, position)
    except WireError as error:
        if not any(view[position : position + BATCH_OVERHEAD]):
            return Damage(position, "zeros where a batch should begin")
        return Damage(position, str(error))
    if magic != _MAGIC:
        return Damage(position, f"magic {magic}, only {_MAGIC} is read")
    if header.size_bytes > remaining:
        return Damage(position, f"{remaining} bytes of a batch of {header.size_bytes}")
    return header
