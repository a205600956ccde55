"""A segment in files that is made of others, and takes their place: how the cleaner writes.

Batches are written in a thread, or by another process. Files get their names, and segments are
exchanged, on the event loop alone: there a partition of the same name cannot come between a check
and a rename. `segment_swap` has the steps and their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from logstore.disk.files import Buffer, FileSystem, StorageFailure
from logstore.segments.ledger import Runner, SegmentLimits, SharedFile
from logstore.segments.names import (
    ABORTED_SUFFIX,
    CLEANED,
    DELETED,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP,
    segment_path,
)
from logstore.segments.segment import Segment
from logstore.segments.segment_copy import SegmentWriter
from wire.records import BatchHeader

_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)


class SegmentList(Protocol):
    """The segments of a ledger in files, as a replacement sees them. On the event loop."""

    limits: SegmentLimits

    @property
    def is_closed(self) -> bool:
        """Whether the names on the disk may belong to another partition, or nothing is durable."""

    def has_segments(self, segments: Sequence[Segment]) -> bool:
        """Whether these are all still there and sealed, and the ledger is open."""

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one segment in the place of others, which are there."""

    def discard(self, paths: Sequence[str]) -> None:
        """Delete files that segments have left, now or later."""

    def failed(self, error: OSError) -> StorageFailure:
        """Fail for good: nothing of this process becomes durable any more."""


class FileReplacement:
    """A segment in files, named `.cleaned` until it is whole."""

    def __init__(
        self,
        segments: SegmentList,
        files: FileSystem,
        directory: str,
        old: Sequence[Segment],
    ) -> None:
        """Make an empty `.log.cleaned`. `old` are next to one another. Raises OSError."""
        self._segments = segments
        self._files = files
        self._directory = directory
        self._old = list(old)
        self._index_interval_bytes = segments.limits.index_interval_bytes
        self._new = Segment.create(files, directory, old[0].base_offset, CLEANED)
        self._file = self._new.file
        self._file.pin()
        self._file.truncate(0)
        self._writer = SegmentWriter(self._file)

    @property
    def shared(self) -> SharedFile:
        return SharedFile(self._file.descriptor, self._account)

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        self._account(header)
        self._writer.append(batch)

    def _account(self, header: BatchHeader) -> None:
        self._new.append(header, self._index_interval_bytes, is_recent=False)

    def seal(self, aborted: bytes) -> None:
        self._writer.flush()
        # Another process may have written them.
        assert self._file.size() == self._new.size, "all batches accounted for are in the file"
        for index in self._new.flush_indexes(final=True, whole=True):
            index.sync()
            index.close()
        index = self._files.open(self._new.path(ABORTED_SUFFIX), create=True)
        index.truncate(0)
        if aborted:
            index.write((aborted,), 0)
        index.sync()
        index.close()
        self._file.sync()

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        try:
            return await self._swap(run, on_swapped)
        except OSError as error:
            if self._segments.has_segments([self._new]) or self._is_current():
                raise self._segments.failed(error) from error
            return self._withdraw()  # The directory is gone with its topic.
        finally:
            self._file.unpin()

    async def _swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        # Each wait may bring a trim, a deletion or the stop, so each step looks again.
        await run(self._sync_names)
        if not self._is_current():
            return self._withdraw()
        self._rename(INDEX_SUFFIXES, CLEANED, SWAP)
        await run(self._sync_names)
        if not self._is_current():
            return self._withdraw()
        self._rename((LOG_SUFFIX,), CLEANED, SWAP)
        self._new.enter_stage(SWAP)
        await run(self._sync_names)
        if not self._is_current():
            return self._withdraw()
        left = [path for old in self._old for path in old.put_aside(DELETED, _SUFFIXES)]
        self._segments.exchange(self._old, self._new)
        on_swapped()
        self._segments.discard(left)
        await run(self._sync_names)
        if self._segments.has_segments([self._new]):
            self._rename(INDEX_SUFFIXES, SWAP, "")
            await run(self._sync_names)
        if self._segments.has_segments([self._new]):
            self._rename((LOG_SUFFIX,), SWAP, "")
            self._new.enter_stage("")
            # The indexes were in memory until here, because their names changed.
            self._new.become_inactive()
            await run(self._sync_names)
        return True

    def abandon(self) -> None:
        self._file.unpin()
        self._withdraw()

    def _is_current(self) -> bool:
        return self._segments.has_segments(self._old)

    def _withdraw(self) -> bool:
        """Delete the new files."""
        self._new.close()
        if self._segments.is_closed:
            return False
        # The `.log` first: without it the rest means nothing to a recovery.
        for suffix in _SUFFIXES:
            for stage in (CLEANED, SWAP):
                if self._files.exists(self._path(suffix + stage)):
                    self._files.unlink(self._path(suffix + stage))
        return False

    def _rename(self, suffixes: Sequence[str], stage: str, next_stage: str) -> None:
        for suffix in suffixes:
            self._files.rename(self._path(suffix + stage), self._path(suffix + next_stage))

    def _path(self, suffix: str) -> str:
        return segment_path(self._directory, self._new.base_offset, suffix)

    def _sync_names(self) -> None:
        self._files.sync_directory(self._directory)
