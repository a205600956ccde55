"""Recovering one log's segments from what a stop, clean or not, has left in its directory.

Everything below the recovery point was durable, indexes included, and is trusted. Past it nothing
is: any part may be missing, zero or torn, any file may be absent. So, in this order:

1. Segments wholly below the start offset are no part of the log: a trim may have come back after
   power loss. They are deleted last, by the caller, for they may hold the only trace of a producer:
   the process may have ended between a roll and the sync of its snapshot.
2. Batches past the recovery point are scanned: CRC, magic, and offsets without a gap (compaction
   leaves gaps, but only in segments that another one follows). All that was ever durable is a
   prefix, so the first invalid batch ends the log: the segment is truncated there, later segments
   are deleted. A valid batch behind a hole was never acknowledged.
   (A log begins with the first segment that is there. A roll waits until the names before it are
   durable, so only a trim can have taken those.)
3. The scanned bytes are written again in place, the indexes made anew, everything synced, names
   included. After a failed write-back pages can be clean in memory and absent on the disk; written
   again they are dirty, and the sync means something. The truncation must be durable before the
   next append, or a stale batch behind the end could follow seamlessly on a new one.

What the log lacks is told before anything is cut off: a start that ends in between leaves a log
that looks whole. Only when all is done does the caller see the log. A clean stop needs the last
segment's end only.
Source: org.apache.kafka.storage.internals.log.LogLoader, which rewrites nothing and allows gaps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from logstore.disk.barriers import Barrier, Procedure
from logstore.disk.files import File, FileSystem
from logstore.segments.ledger import SegmentLimits
from logstore.segments.names import (
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    base_offsets,
)
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import SCAN_BYTES, scan
from logstore.segments.segment_swap import finish_swaps
from wire.records import BatchHeader, crc_ok
from wire.records.header import MAGIC, OFFSET_MAX, is_intact


@dataclass(slots=True)
class Recovered:
    """What recovery found and did. Worth a log line when anything was cut off."""

    end_offset: int
    segments: list[Segment] = field(default_factory=list)
    #: The segments wholly below the start offset, ascending. The caller deletes them.
    trimmed: list[Segment] = field(default_factory=list)
    #: The base offset of the first segment that is there; None: there is none.
    first_offset: int | None = None
    #: The files of the log's directory before leftovers were deleted; None: there is no directory.
    names: list[str] | None = None
    #: The leader epoch of the last batch; -1 in an empty log.
    leader_epoch: int = -1
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    #: How many offsets below the recovery point are missing. Not 0: the disk has lost data.
    lost_offsets: int = 0


class _Scanned(NamedTuple):
    """A segment whose valid batches end at its `size`, and whose file had another size."""

    segment: Segment
    #: Where the scan began.
    start: int
    size_before: int


@dataclass(slots=True, frozen=True)
class Recovery:
    """One run over one directory."""

    files: FileSystem
    directory: str
    limits: SegmentLimits
    #: Where the log starts, durable before anything below was deleted.
    start_offset: int
    #: Everything below was durable, and indexed.
    recovery_point: int
    #: The log was closed cleanly: it ends where its last segment ends.
    clean: bool
    #: Is told once where the log will end, and what it lacks, before anything is cut off.
    before_cut: Callable[[Recovered], None]

    def steps(self) -> Procedure[Recovered]:
        """Recover. Raises `OSError`. Everything in the result is durable."""
        result = Recovered(self.start_offset)
        try:
            names = self.files.list(self.directory)
        except FileNotFoundError:
            self._tell([], result)
            return result
        if finish_swaps(self.files, self.directory, names):
            names = self.files.list(self.directory)
        result.names = names
        segments = self._find_segments(names)
        result.first_offset = segments[0].base_offset if segments else None
        result.trimmed, segments = self._part(segments)
        # A clean log needs its end only. It is scanned if it does not end with a batch in order.
        if self.clean and segments and self._measure(segments[-1], result):
            self._tell(segments, result)
        else:
            result.leader_epoch = -1
            segments = yield from self._recover(segments, result)
        if segments and segments[-1].next_offset < self.start_offset:
            # All batches between these segments and the start offset are lost. A producer that
            # these segments remember would be refused its next batch, so they go too.
            for segment in [*result.trimmed, *segments]:
                segment.delete()
            self.files.sync_directory(self.directory)
            segments, result.trimmed = [], []
        result.segments = segments
        if result.leader_epoch < 0:
            result.leader_epoch = self._last_leader_epoch(segments)
        return result

    def _find_segments(self, names: list[str]) -> list[Segment]:
        """Return the segments that are there, ascending. Delete the leftovers."""
        stems = {name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            stem, _, suffix = name.rpartition(".")
            is_orphan = (
                f".{suffix}" in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX) and stem not in stems
            )
            if name.endswith(LEFTOVER_SUFFIXES) or is_orphan:
                self.files.unlink(f"{self.directory}/{name}")
        segments = [Segment(self.files, self.directory, base) for base in base_offsets(names)]
        for segment, later in zip(segments, segments[1:], strict=False):
            segment.size = self.files.facts(segment.path(LOG_SUFFIX)).size_bytes
            segment.next_offset = later.base_offset
        return segments

    def _part(self, segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Return the segments that lie wholly below the start offset, and the others."""
        first = sum(segment.base_offset <= self.start_offset for segment in segments[1:])
        return segments[:first], segments[first:]

    def _measure(self, last: Segment, result: Recovered) -> bool:
        """Find the last segment's end without a CRC scan. False: it needs one."""
        size = last.file.size()
        position = resume(last, size, OFFSET_MAX)
        for _, header, _ in scan(last.file, position, size, whole=False):
            # A clean log ends at its recovery point, if that is known. What goes beyond it behind a
            # gap has a damaged offset, which no CRC covers.
            if not _follows(header, last.next_offset, self.recovery_point or OFFSET_MAX):
                return False
            last.append(header, self.limits.index_interval_bytes, is_recent=False)
            result.leader_epoch = header.partition_leader_epoch
        return last.size == size

    def _recover(self, segments: list[Segment], result: Recovered) -> Procedure[list[Segment]]:
        """Return the segments that remain. At the end all of them are durable."""
        trusted = sum(segment.base_offset <= self.recovery_point for segment in segments[1:])
        kept, scanned = segments[:trusted], list[_Scanned]()
        for segment, later in zip_longest(segments[trusted:], segments[trusted + 1 :]):
            if scanned and scanned[-1].segment.next_offset != segment.base_offset:
                break
            # Compaction leaves gaps within a segment. A batch that claims to be of a later one has
            # a damaged base offset, which its CRC does not cover.
            gap_end_offset = self.recovery_point if later is None else later.base_offset
            scanned.append(self._scan(segment, result, gap_end_offset))
            if segment.size < scanned[-1].size_before:
                break
        beyond = segments[len(kept) + len(scanned) :]
        result.truncated_bytes += sum(segment.file.size() for segment in beyond)
        remaining = kept + [each.segment for each in scanned]
        self._tell(remaining, result)
        for each in scanned:
            _cut(each)
        for segment in beyond:
            segment.delete()
        yield from self._sync(remaining[len(kept) :], result.names or ())
        return remaining

    def _tell(self, segments: list[Segment], result: Recovered) -> None:
        """Tell where the log ends with these segments, and what it lacks."""
        if segments:
            result.end_offset = max(self.start_offset, segments[-1].next_offset)
        result.lost_offsets = max(0, self.recovery_point - result.end_offset)
        self.before_cut(result)

    def _scan(self, segment: Segment, result: Recovered, gap_end_offset: int) -> _Scanned:
        """Take over the valid batches past the recovery point. The log ends behind them where the
        file is longer. Batches below `gap_end_offset` may have gaps before them."""
        size = segment.file.size()
        start = resume(segment, size, self.recovery_point)
        for _, header, batch in scan(segment.file, start, size, whole=True):
            if not _is_valid(header, batch, segment.next_offset, gap_end_offset):
                break
            segment.append(header, self.limits.index_interval_bytes, is_recent=False)
            result.leader_epoch = header.partition_leader_epoch
        result.scanned_bytes += segment.size - start
        result.truncated_bytes += size - segment.size
        return _Scanned(segment, start, size)

    def _sync(self, scanned: list[Segment], names: Sequence[str]) -> Procedure[None]:
        written: list[File] = []
        for segment in scanned:
            written += segment.flush_indexes(final=segment is not scanned[-1], whole=True)
        first_stem = f"{scanned[0].base_offset:020d}" if scanned else ""
        written += self._rewrite_attachments(names, first_stem)
        logs = [segment.file for segment in scanned]
        yield Barrier([*logs, *written], (self.directory, os.path.dirname(self.directory)))
        for file in written:
            file.close()
        for segment in scanned[:-1]:
            segment.become_inactive()
            segment.close()

    def _rewrite_attachments(self, names: Sequence[str], first_stem: str) -> Iterator[File]:
        """Write what stands beside the scanned segments again, as they are, and yield the files."""
        for name in names:
            stem = name.partition(".")[0]
            if name.endswith((*SEGMENT_SUFFIXES, *LEFTOVER_SUFFIXES)) or (
                stem.isdigit() and stem < first_stem
            ):
                continue
            try:
                file = self.files.open(f"{self.directory}/{name}")
            except IsADirectoryError:
                continue  # Not made by a broker.
            if size := file.size():
                file.write((file.read(size, 0),), 0)
            yield file

    def _last_leader_epoch(self, segments: list[Segment]) -> int:
        for segment in reversed(segments):
            segment.load_indexes()
            assert segment.offset_index is not None
            epoch = -1
            for _, header in segment.headers(segment.offset_index.lookup(OFFSET_MAX)):
                epoch = header.partition_leader_epoch
            if segment.size:
                return epoch
        return -1


def _cut(scanned: _Scanned) -> None:
    """Let a segment's file end with its valid batches, and write these again in place (step 3)."""
    segment, start, size_before = scanned
    if segment.size < size_before:
        # Durable before the next append: a stale batch behind the end could follow on it.
        segment.file.truncate(segment.size)
    # Only dirty pages are synced.
    for position in range(start, segment.size, SCAN_BYTES):
        data = segment.file.read(min(SCAN_BYTES, segment.size - position), position)
        segment.file.write((data,), position)


def resume(segment: Segment, size: int, offset: int) -> int:
    """Trust the segment's index below `offset`: go on at the last batch that it knows.

    Returns that position, with the segment ready for it. An index that does not lead to a valid
    batch is dropped, and the position is 0.
    """
    segment.size = size
    segment.load_indexes()
    assert segment.offset_index is not None and segment.time_index is not None
    segment.offset_index.truncate(offset)
    segment.time_index.truncate(offset)
    position = segment.offset_index.lookup(offset)
    next_offset = segment.base_offset
    if position:
        first = next(scan(segment.file, position, size, whole=True), None)
        # No CRC covers its offset: the index tells.
        is_there = first is not None and first[1].last_offset == segment.offset_index.last_offset
        if first is not None and is_there and crc_ok(first[2]):
            next_offset = first[1].base_offset
        else:
            segment.offset_index.truncate(segment.base_offset)
            segment.time_index.truncate(segment.base_offset)
            position = 0
    segment.resume_at(position, next_offset)
    return position


def _follows(header: BatchHeader, expected_offset: int, gap_end_offset: int) -> bool:
    """Whether a batch comes next by its offsets. One that ends below `gap_end_offset` may leave a
    gap: that is where a batch ended before compaction, which leaves no batch longer."""
    return header.base_offset == expected_offset or (
        expected_offset < header.base_offset and header.last_offset < gap_end_offset
    )


def _is_valid(
    header: BatchHeader, batch: memoryview, expected_offset: int, gap_end_offset: int
) -> bool:
    """Whether this batch is whole and comes next. Below `gap_end_offset` a gap may precede it."""
    return (
        _follows(header, expected_offset, gap_end_offset)
        and header.magic == MAGIC
        and header.last_offset_delta >= 0
        and is_intact(header, batch)
    )
