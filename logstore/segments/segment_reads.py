"""Reading batches out of a `.log` file, or out of memory: in sequence, or a range for a fetch.

A fetch of the latest batches needs none of this: `Segment.recent_range` knows their positions. A
fetch of older ones is planned on the event loop from the index (`plan_read`) and performed there or
in a thread (`perform`), which touches nothing but the plan and the file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from logstore.disk.file_range import RANGE_BYTES_MIN, FileRange
from logstore.disk.files import Buffer, File
from logstore.segments.offset_index import OffsetIndex
from wire.records import BATCH_OVERHEAD, BatchHeader
from wire.records.header import (
    BATCH_LENGTH_MIN,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    SPAN_BYTES,
    is_intact,
    read_span,
)

#: Bytes read at once by a scan.
SCAN_BYTES = 256 * 1024

#: What `perform` returns where the file ends before the offset: go on in the next segment.
ABSENT = memoryview(b"")


class DamagedBatch(OSError):
    """A file does not hold the batch that was written there: the disk, or another program, has
    changed it."""

    def __init__(self, problem: str) -> None:
        super().__init__(errno.EBADMSG, problem)


def whole(data: Buffer, place: tuple[int, int], offset: int, bounds: tuple[int, int]) -> memoryview:
    """Return `data`, read from [place[0], place[1]) of a file for `offset`. Raises DamagedBatch."""
    if len(data) < place[1] - place[0]:
        raise DamagedBatch(f"the file ends at byte {place[0] + len(data)}, before {place[1]}")
    if data:
        _check_batch(data, 0, offset, bounds)
    return memoryview(data)


def read_exactly(
    file: File, place: tuple[int, int], offset: int, bounds: tuple[int, int]
) -> memoryview | FileRange | None:
    """Return [place[0], place[1]) of a file, which begins with the batch that contains `offset`.

    None: the read would wait for the disk. Raises DamagedBatch.
    """
    start, size = place[0], place[1] - place[0]
    if not size:
        return ABSENT
    if size >= RANGE_BYTES_MIN:
        head, found = file.read_now(SPAN_BYTES, start), file.range_now(size, start)
        if head is not None and found is not None:
            _check_batch(head, 0, offset, bounds)
            return found
    data = file.read_now(size, start)
    return None if data is None else whole(data, place, offset, bounds)


def _check_batch(data: Buffer, at: int, offset: int, bounds: tuple[int, int]) -> None:
    """Check that `data` has at `at` the head of a batch that ends past `offset`, within `bounds`.

    Raises DamagedBatch. Looks at no CRC: readers do.
    """
    first_offset, end_offset = bounds
    if at + SPAN_BYTES <= len(data):
        base_offset, length, delta = read_span(data, at)
        if (
            first_offset <= base_offset <= base_offset + delta < end_offset
            and base_offset + delta >= offset
            and length >= BATCH_LENGTH_MIN
            and data[at + MAGIC_AT] == MAGIC
        ):
            return
    raise DamagedBatch(f"no batch where offset {offset} is")


class Readable(Protocol):
    """A file, or something that is read like one."""

    def read(self, size: int, position: int) -> bytes:
        """Read as `File.read` does."""


@dataclass(slots=True, frozen=True)
class ReadPlan:
    """A range of a file to read, and which part of it is wanted."""

    offset: int
    max_bytes: int
    end_offset: int
    at_least_one: bool
    #: Where a batch begins, at or before the one that contains `offset`.
    position: int
    #: Where a later batch begins. Everything from `position` to there is wanted, except a little
    #: at the beginning. Equal to `position` if no later batch is known.
    boundary: int
    #: The log's bytes from `position` on.
    size: int
    #: The offsets of the file's batches are in [bounds[0], bounds[1]).
    bounds: tuple[int, int]


def plan_read(
    index: OffsetIndex,
    log_size: int,
    bounds: tuple[int, int],
    offset: int,
    max_bytes: int,
    end_offset: int,
    *,
    at_least_one: bool,
) -> ReadPlan:
    """Return where to read for a fetch at `offset`, from what the index knows.

    The file has `log_size` bytes of batches, with offsets in [bounds[0], bounds[1]).
    """
    position = index.lookup(offset)
    boundary = max(index.boundary(position + max_bytes, end_offset), position)
    return ReadPlan(
        offset,
        max_bytes,
        end_offset,
        at_least_one,
        position,
        boundary,
        log_size - position,
        bounds,
    )


def perform(
    plan: ReadPlan, read: Callable[[int, int], Buffer | None], slack_bytes: int
) -> memoryview | None:
    """Return the whole batches that the plan asks for. None as soon as `read` returns None.

    Empty where no batch is wanted, `ABSENT` where the file ends before `plan.offset`. Raises
    DamagedBatch where the disk has lost what recovery saw there, or where the file ends within a
    batch: a client that got half of it would ask for it again for ever.

    `slack_bytes` are read beyond `max_bytes`, for the batches between the index entry and the one
    wanted. The index interval is the right amount.
    """
    skipped = 0  # bytes of batches that end before `plan.offset`
    while True:
        wanted = min(plan.size - skipped, plan.max_bytes + max(slack_bytes, BATCH_OVERHEAD))
        data = read(wanted, plan.position + skipped)
        if data is None:
            return None
        at, place = _find(data, plan.offset)
        if place is not None or not at or skipped + at >= plan.size:
            break
        skipped += at
    if place is None:
        if skipped + at < plan.size:
            raise DamagedBatch(f"half a batch before {plan.offset}")
        return ABSENT
    _check_batch(data, at, plan.offset, plan.bounds)
    next_offset, size = place
    if size > plan.size - skipped - at:
        raise DamagedBatch(f"half a batch where {plan.offset} is")
    if next_offset > plan.end_offset or (size > plan.max_bytes and not plan.at_least_one):
        return memoryview(b"")
    if at + size > len(data) or size > plan.max_bytes:
        first = read(size, plan.position + skipped + at)
        return None if first is None else memoryview(first)
    boundary = plan.boundary - plan.position - skipped
    stop = boundary if at + size < boundary <= at + plan.max_bytes else at + size
    return memoryview(data)[at : _extend(data, stop, at + plan.max_bytes, plan.end_offset)]


def read_planned(
    plan: ReadPlan, file: File, slack_bytes: int, index: OffsetIndex
) -> memoryview | FileRange | None:
    """Return what `perform` does, without a wait for the disk, or many bytes as a part of the file.

    Such a part may end before the last batch that fits. `index` is what the plan was made from.
    Raises DamagedBatch.
    """
    part = _part_of(plan, file, slack_bytes, index)
    return perform(plan, file.read_now, slack_bytes) if part is None else part


def _part_of(plan: ReadPlan, file: File, slack_bytes: int, index: OffsetIndex) -> FileRange | None:
    if plan.size < RANGE_BYTES_MIN or plan.max_bytes < RANGE_BYTES_MIN:
        return None
    skipped = 0  # Bytes of batches that end before `plan.offset`.
    # Twice, not as far as it takes: one large batch may be between the entry and the one wanted.
    for _ in range(2):
        wanted = min(plan.size - skipped, max(slack_bytes, BATCH_OVERHEAD))
        head = file.read_now(wanted, plan.position + skipped)
        if head is None:
            return None
        at, place = _find(head, plan.offset)
        skipped += at
        if place is not None:
            break
        if skipped >= plan.size:
            return None
    else:
        return None
    next_offset, size = place
    is_there = next_offset <= plan.end_offset and size <= plan.size - skipped
    if not is_there or size > plan.max_bytes:
        return None
    _check_batch(head, at, plan.offset, plan.bounds)
    start = plan.position + skipped
    boundary = index.boundary(start + plan.max_bytes, plan.end_offset)
    return file.range_now(max(boundary - start, size), start)


def _find(data: Buffer, offset: int) -> tuple[int, tuple[int, int] | None]:
    """Return the position of the first batch that ends past `offset`, and (next offset, size).

    None for the latter: the batch is not in `data`, go on reading at that position.
    """
    at = 0
    head = len(data) - SPAN_BYTES
    while at <= head:
        base_offset, length, delta = read_span(data, at)
        if base_offset + delta >= offset:
            return at, (base_offset + delta + 1, length + LENGTH_OVERHEAD)
        if length < BATCH_LENGTH_MIN:
            raise DamagedBatch(f"no batch where offset {offset} is")
        at += length + LENGTH_OVERHEAD
    return at, None


def _extend(data: Buffer, stop: int, limit: int, end_offset: int) -> int:
    """Return `stop`, a batch boundary, moved over all whole batches up to both limits."""
    limit = min(limit, len(data))
    while stop + SPAN_BYTES <= limit:
        base_offset, length, delta = read_span(data, stop)
        end = stop + length + LENGTH_OVERHEAD
        if end > limit or base_offset + delta >= end_offset or length < BATCH_LENGTH_MIN:
            break
        stop = end
    return stop


def scan(
    file: Readable, position: int, size: int, *, whole: bool
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of every batch from `position` up to the file's `size`.

    Ends silently at the first batch that is not there whole, or whose length is a lie. With
    `whole` the bytes are the batch's, else only its header's. Blocks.
    """
    data, start = memoryview(b""), position
    while position + BATCH_OVERHEAD <= size:
        at = position - start
        if at + BATCH_OVERHEAD > len(data):
            data = memoryview(file.read(min(SCAN_BYTES, size - position), position))
            start, at = position, 0
            if len(data) < BATCH_OVERHEAD:
                return
        length = read_span(data, at)[1] + LENGTH_OVERHEAD
        if length < BATCH_OVERHEAD or position + length > size:
            return
        end = at + length if whole else at + BATCH_OVERHEAD
        if end > len(data):
            data = memoryview(file.read(max(length, min(SCAN_BYTES, size - position)), position))
            start, at, end = position, 0, length
            if end > len(data):
                return
        yield position, BatchHeader.parse(data, at), data[at:end]
        position += length


def scan_checked(
    file: Readable, position: int, size: int, first_offset: int, end_offset: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield as `scan` with `whole` does, and end at the first batch that is not what was written.

    That is: of a wrong CRC or format, or in a wrong place (offsets rise, in [first_offset,
    end_offset), which no CRC covers). All is well where the last one ends at `size`.
    """
    for at, header, batch in scan(file, position, size, whole=True):
        is_placed = first_offset <= header.base_offset < header.next_offset <= end_offset
        if not is_placed or header.magic != MAGIC or not is_intact(header, batch):
            return
        yield at, header, batch
        first_offset = header.next_offset


def joined(
    batches: Iterator[tuple[BatchHeader, bytes]],
    max_bytes: int,
    end_offset: int,
    *,
    at_least_one: bool,
) -> memoryview:
    """Return the first of some batches in memory as one piece, within the limits of a read."""
    chosen: list[bytes] = []
    size_bytes = 0
    for header, batch in batches:
        if header.next_offset > end_offset:
            break
        size_bytes += len(batch)
        if size_bytes > max_bytes and (chosen or not at_least_one):
            break
        chosen.append(batch)
    return memoryview(chosen[0] if len(chosen) == 1 else b"".join(chosen))
