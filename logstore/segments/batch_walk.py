"""The batches of a `.log` file that may be damaged anywhere: those that are whole, and the rest.

For files that are not being written. Unlike `segment_reads.scan` a walk goes on behind a damaged
place: at the batch's end by its own account, or at a place that the offset index names. It reads
through a buffer of fixed size, whatever length a batch claims, and survives sectors that the disk
cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from logstore.disk.files import File
from logstore.segments.ledger import UNREADABLE
from logstore.segments.offset_index import RELATIVE_OFFSET_MAX
from logstore.segments.segment_reads import SCAN_BYTES
from wire.errors import WireError
from wire.records import BATCH_OVERHEAD, BatchHeader
from wire.records.header import CRC_COVERS_FROM, MAGIC


class WholeBatch(NamedTuple):
    """A batch whose CRC is right and whose offsets follow on those before it."""

    position: int
    header: BatchHeader
    #: The batch, or its first `SCAN_BYTES`: enough for every marker.
    data: memoryview


class DamagedPlace(NamedTuple):
    """Bytes that are no whole batch. The walk goes on at `end`."""

    position: int
    end: int
    reason: str


def walk(
    file: File, first_offset: int, end_offset: int, hints: Sequence[int] = ()
) -> Iterator[WholeBatch | DamagedPlace]:
    """Yield everything in the file. Its offsets lie in [first_offset, end_offset).

    `hints` are positions at which batches may begin, ascending.
    """
    window = _Window(file)
    size = file.size()
    position, next_offset = 0, first_offset
    end_offset = min(end_offset, first_offset + RELATIVE_OFFSET_MAX + 1)
    while position < size:
        found = _batch_at(window, position, size, next_offset, end_offset)
        if isinstance(found, WholeBatch) and found.header.base_offset > next_offset:
            found = _unless_out_of_order(window, found, size, next_offset)
        if isinstance(found, WholeBatch):
            yield found
            next_offset = found.header.next_offset
            position += found.header.size_bytes
            continue
        reason, claimed_end = found
        candidates = sorted({claimed_end, *(hint for hint in hints if hint > position)})
        end = next(
            (
                at
                for at in candidates
                if position < at < size
                and isinstance(_batch_at(window, at, size, next_offset, end_offset), WholeBatch)
            ),
            size,
        )
        yield DamagedPlace(position, end, reason)
        position = end


def _unless_out_of_order(
    window: _Window, batch: WholeBatch, size: int, next_offset: int
) -> WholeBatch | tuple[str, int]:
    """Return a batch that has a gap before it, or what is wrong with its base offset.

    No CRC covers the offset. It is wrong if the batch behind it fits into the gap: a walk that
    believes it would take that batch, and all that follow, for damaged.
    """
    header = batch.header
    end = batch.position + header.size_bytes
    behind = window.read(BATCH_OVERHEAD, end)
    if behind is None or len(behind) < BATCH_OVERHEAD:
        return batch
    if int.from_bytes(behind[:8]) >= header.next_offset or not isinstance(
        _batch_at(window, end, size, next_offset, header.base_offset), WholeBatch
    ):
        return batch
    return f"offset {header.base_offset}, though {next_offset} is due and a lower one follows", end


class _Window:
    """A file, read through a buffer."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = memoryview(b"")
        self._position = 0

    def read(self, size: int, position: int) -> memoryview | None:
        """Return up to `size` bytes, `SCAN_BYTES` at most; None: the disk cannot read them."""
        at = position - self._position
        if at < 0 or at + size > len(self._data):
            try:
                self._data = memoryview(self._file.read(SCAN_BYTES, position))
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                return self._read_exactly(size, position)
            self._position, at = position, 0
        return self._data[at : at + size]

    def _read_exactly(self, size: int, position: int) -> memoryview | None:
        """Read no byte more, since the next sector may be the bad one."""
        try:
            return memoryview(self._file.read(size, position))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None


def _batch_at(
    window: _Window, position: int, size: int, next_offset: int, end_offset: int
) -> WholeBatch | tuple[str, int]:
    """Return the batch at `position`, or what is wrong there, and where the batch claims to end."""
    head = window.read(BATCH_OVERHEAD, position)
    if head is None:
        return "the disk cannot read the file here", 0
    try:
        header = BatchHeader.parse(head)
    except WireError as error:
        return ("zeros where a batch should begin" if not any(head) else str(error)), 0
    end = position + header.size_bytes
    if header.magic != MAGIC:
        return f"magic {header.magic}, only {MAGIC} is read", end
    if end > size:
        return f"{size - position} bytes of a batch of {header.size_bytes}", 0
    crc = 0
    for at in range(position + CRC_COVERS_FROM, end, SCAN_BYTES):
        data = window.read(min(SCAN_BYTES, end - at), at)
        if data is None:
            return "the disk cannot read the file here", end
        crc = crc32c(data, crc)
    if crc != header.crc:
        return "the CRC does not match", end
    if (
        header.last_offset_delta < 0
        or not next_offset <= header.base_offset <= header.last_offset < end_offset
    ):
        reason = f"offsets {header.base_offset} to {header.last_offset} where {next_offset} is due"
        return reason, end
    data = window.read(min(SCAN_BYTES, header.size_bytes), position)
    return WholeBatch(position, header, memoryview(b"") if data is None else data)
