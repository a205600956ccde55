"""Logs that another broker wrote: from where on their recovery has to look for a torn end.

Between two segments of a log of ours no offset is missing, so recovery takes a gap for a loss and
ends the log there. Kafka's cleaner leaves such gaps, and segments with nothing in them; a replica
copies them into its active segment, too. What is whole is therefore told to recovery as what it
need not doubt. Source: Kafka's LogCleaner, which keeps the last batch of a run, not that of every
segment; ReplicaFetcherThread, UnifiedLog.appendAsFollower.
"""

from __future__ import annotations

from itertools import pairwise

from logstore.disk.files import File, FileSystem
from logstore.segments.names import LOG_SUFFIX, segment_path
from logstore.segments.segment_reads import scan
from wire.records import BatchHeader, crc_ok

_BASE_OFFSET_DIGITS = 20
_MAGIC = 2


def foreign_recovery_point(files: FileSystem, directory: str) -> int:
    """Return the base offset of the first segment that is not whole, or else of the last one, or
    where the last gap in that ends.

    All before it is durable then. Reads every batch. Blocks; raises OSError.
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
    """Return the next offset of the last batch before which some are missing; or the base."""
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
    return next_offset <= header.base_offset < header.next_offset and header.magic == _MAGIC


def _is_whole(file: File, base_offset: int, end_offset: int) -> bool:
    """Whether the file holds valid batches and nothing else, in order, within these offsets."""
    next_offset, end, size = base_offset, 0, file.size()
    for position, header, batch in scan(file, 0, size, whole=True):
        is_next = _follows(header, next_offset) and header.next_offset <= end_offset
        if not (is_next and crc_ok(batch)):
            return False
        next_offset, end = header.next_offset, position + header.size_bytes
    return end == size
