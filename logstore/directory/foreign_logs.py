"""Logs that another broker wrote: where their recovery has to begin, and which numbers they use up.

Between two segments of our own logs no offset is missing, so recovery takes a gap for a loss and
ends the log there. Kafka's cleaner leaves such gaps, and empty segments; a replica copies them into
its active segment, too. So the part that is whole is put below the recovery point, where recovery
doubts nothing.

This broker must give out no producer id and no epoch that a log tells of already: a marker of an
earlier coordinator epoch would be refused there.

Source: Kafka's LogCleaner, which keeps the last batch of a run, not that of every segment;
ReplicaFetcherThread, UnifiedLog.appendAsFollower.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from logstore.disk.files import File, FileSystem
from logstore.partition.snapshot import SUFFIX, CorruptSnapshot, decode_snapshot
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshot_kafka import decode_kafka_snapshot
from logstore.partition.state import PartitionState
from logstore.segments.attachments import SmallFiles
from logstore.segments.names import LOG_SUFFIX, base_offsets, segment_path
from logstore.segments.segment_reads import scan
from wire.errors import WireError
from wire.records import BatchHeader, crc_ok, parse_marker
from wire.records.header import MAGIC


class UsedNumbers(NamedTuple):
    """The highest numbers that a log tells of, -1: none."""

    producer_id: int = -1
    #: The highest epoch of a leader or a transaction coordinator: a broker has one number for both.
    epoch: int = -1

    def above(self, other: UsedNumbers) -> UsedNumbers:
        """Return the higher of both, each by itself."""
        return UsedNumbers(max(self.producer_id, other.producer_id), max(self.epoch, other.epoch))


def used_numbers(files: FileSystem, directory: str, producer_ids_end: int) -> UsedNumbers:
    """Return what the segments and the snapshots in a log's directory tell of.

    Producer ids from `producer_ids_end` on are left out. Reads every batch. Blocks; raises OSError.
    """
    used = UsedNumbers()
    small_files = SmallFiles(files, directory)
    for name in files.list(directory):
        if name.endswith(LOG_SUFFIX):
            used = used.above(_used_by_batches(files, f"{directory}/{name}", producer_ids_end))
        elif name.endswith((SUFFIX, KAFKA_SUFFIX)):
            data = small_files.read(name) or b""
            used = used.above(used_by_snapshot(name, data, producer_ids_end))
    return used


def used_by_snapshot(name: str, data: bytes, producer_ids_end: int) -> UsedNumbers:
    """Return what a snapshot of that name tells of: also of markers whose segments are gone."""
    try:
        state = _state_in(name, data)
    except CorruptSnapshot:
        return UsedNumbers()
    epochs = (producer.coordinator_epoch for producer in state.producers.values())
    return UsedNumbers(
        _highest_id(state.producers, producer_ids_end), max(state.leader_epochs.latest, *epochs, -1)
    )


def _state_in(name: str, data: bytes) -> PartitionState:
    if name.endswith(SUFFIX):
        return decode_snapshot(data).state
    return decode_kafka_snapshot(data, end_offset=0, steady_ms=0)


def _used_by_batches(files: FileSystem, path: str, producer_ids_end: int) -> UsedNumbers:
    used = UsedNumbers()
    file = files.open(path)
    try:
        for _, header, batch in scan(file, 0, file.size(), whole=True):
            if not crc_ok(batch):
                break
            epoch = header.partition_leader_epoch
            if header.is_control:
                epoch = max(epoch, _coordinator_epoch(batch))
            producer_id = _highest_id((header.producer_id,), producer_ids_end)
            used = used.above(UsedNumbers(producer_id, epoch))
    finally:
        file.close()
    return used


def _coordinator_epoch(batch: memoryview) -> int:
    try:
        return parse_marker(batch).coordinator_epoch
    except WireError:
        return -1  # Compaction has emptied the batch, or it is not about transactions.


def _highest_id(producer_ids: Iterable[int], producer_ids_end: int) -> int:
    # A higher id was made up by a producer: no counter comes near it.
    return max((one for one in producer_ids if one < producer_ids_end), default=-1)


def foreign_recovery_point(files: FileSystem, directory: str) -> int:
    """Return the offset at which recovery must begin; everything before it is durable then.

    It is the base offset of the first segment that is not whole. If all but the last are whole, it
    is where the last gap in the last one ends, or that segment's base offset. Reads every batch.
    Blocks; raises OSError.
    """
    bases = base_offsets(files.list(directory))
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
