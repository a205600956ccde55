"""Logs that another broker wrote: where their recovery has to begin to look for a torn end.

Between two segments of our own logs no offset is missing, so recovery takes a gap for a loss and
ends the log there. Kafka's cleaner leaves such gaps, and empty segments; a replica copies them into
its active segment, too. So the part that is whole is put below the recovery point, where recovery
doubts nothing. Source: Kafka's LogCleaner, which keeps the last batch of a run, not that of every
segment; ReplicaFetcherThread, UnifiedLog.appendAsFollower.
"""

from __future__ import annotations

from itertools import pairwise

from logstore.disk.files import File, FileSystem
from logstore.segments.names import LOG_SUFFIX, segment_path
from logstore.segments.segment_reads import scan
from wire.records import BatchHeader, crc_ok
from wire.records.header import MAGIC

_BASE_OFFSET_DIGITS = 20


def foreign_recovery_point(files: FileSystem, directory: str) -> int:
    """Return the offset at which recovery must begin; everything before it is durable then.

    It is the base offset of the first segment that is not whole. If all but the last are whole, it
    is where the last gap in the last one ends, or that segment's base offset. Reads every batch.
    Blocks; raises OSError.
    """
    stems = [name.removesuffix(LOG_SUFFIX) for name in files.list(directory)]
    bases = sorted(
        int(stem) for stem in stems if len(stem) == _BASE_OFFSET_DIGITS and stem.isdigit()
    )
    for base_offset, later in pairwise(bases):
        file = files.open(segment_path(directory, base_offset, LOG_SUFFIX))
        try:
            if not _is_whole(file, base_offset, later):
                return base_offset
            file.sync()
        finally:
            file.close()
    files.sync_directory(directory)
    return _end_of_gaps(files, directory, bases[-1]) if bases else 0


def _end_of_gaps(files: FileSystem, directory: str, base_offset: int) -> int:
    """Return the offset after the last batch that follows a gap; the base offset without gaps."""
    file = files.open(segment_path(directory, base_offset, LOG_SUFFIX))
    try:
        next_offset = end_of_gaps = base_offset
        for _, header, batch in scan(file, 0, file.size(), whole=True):
            if not (_follows(header, next_offset) and crc_ok(batch)):
                break
            if header.base_offset > next_offset:
                end_of_gaps = header.next_offset
            next_offset = header.next_offset
        if end_of_gaps > base_offset:
            file.sync()
        return end_of_gaps
    finally:
        file.close()


def _follows(header: BatchHeader, next_offset: int) -> bool:
    return next_offset <= header.base_offset < header.next_offset and header.magic == MAGIC


def _is_whole(file: File, base_offset: int, end_offset: int) -> bool:
    """Whether the file holds valid batches and nothing else, in order, within these offsets."""
    next_offset, end, size = base_offset, 0, file.size()
    for position, header, batch in scan(file, 0, size, whole=True):
        is_next = _follows(header, next_offset) and header.next_offset <= end_offset
        if not (is_next and crc_ok(batch)):
            return False
        next_offset, end = header.next_offset, position + header.size_bytes
    return end == size
