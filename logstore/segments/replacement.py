"""A segment that is made of others, and takes their place: what the cleaner asks of a ledger.

Reading and writing happen in a thread; names are given and segments exchanged on the event loop
alone, so that no partition of the same name that comes later can be meant. Steps and their order:
`segment_swap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from logstore.disk.files import Buffer, File, FileSystem, StorageFailure
from logstore.segments.ledger import Runner, SegmentLimits
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
from logstore.segments.segment_reads import scan
from wire.records import BatchHeader

#: Bytes that are written at once, and those after which they are synced: so little is dirty that
#: no other file's sync waits for long.
_WRITE_BYTES = 256 * 1024
_SYNC_BYTES = 2 * 1024 * 1024

_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)


class SealedFile:
    """A `.log` file being read, by a descriptor of its own."""

    def __init__(self, file: File, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        for _, header, batch in scan(self._file, 0, self._size_bytes, whole=True):
            yield header, batch

    def close(self) -> None:
        self._file.close()


class Segments(Protocol):
    """The segments of a ledger in files, as a replacement sees them. On the event loop."""

    limits: SegmentLimits

    @property
    def is_closed(self) -> bool:
        """Whether its names are nobody's any more, or another's."""
        ...

    def has_segments(self, segments: Sequence[Segment]) -> bool:
        """Whether these are all still there, and the ledger open."""
        ...

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        """Have one segment in the place of others, which are there."""
        ...

    def discard(self, paths: Sequence[str]) -> None:
        """Delete files that segments have left, when it suits."""
        ...

    def failed(self, error: OSError) -> StorageFailure:
        """Nothing of this process may become durable any more."""
        ...


class FileReplacement:
    """A segment in files, named `.cleaned` until it is whole."""

    def __init__(
        self,
        segments: Segments,
        files: FileSystem,
        directory: str,
        old: Sequence[Segment],
    ) -> None:
        """Make its `.log.cleaned`, empty. `old` are next to one another. Raises OSError."""
        self._segments = segments
        self._files = files
        self._directory = directory
        self._old = list(old)
        self._index_interval_bytes = segments.limits.index_interval_bytes
        self._new = Segment.create(files, directory, old[0].base_offset, CLEANED)
        self._file = self._new.file
        self._file.pin()
        self._file.truncate(0)
        self._buffers: list[Buffer] = []
        self._written_bytes = self._synced_bytes = 0

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        self._buffers.append(batch)
        self._new.append(header, self._index_interval_bytes, is_recent=False)
        if self._new.size - self._written_bytes >= _WRITE_BYTES:
            self._write()
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._file.sync()
            self._synced_bytes = self._written_bytes

    def _write(self) -> None:
        if self._buffers:
            self._file.write(self._buffers, self._written_bytes)
            self._written_bytes = self._new.size
            self._buffers = []

    def seal(self, aborted: bytes) -> None:
        self._write()
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
            return False  # Its directory is gone with its topic.
        finally:
            self._file.unpin()

    async def _swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
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
            # Until here its indexes have been in memory, under names that changed.
            self._new.become_inactive()
            await run(self._sync_names)
        return True

    def abandon(self) -> None:
        self._file.unpin()
        self._withdraw()

    def _is_current(self) -> bool:
        return self._segments.has_segments(self._old)

    def _withdraw(self) -> bool:
        """The `.log` first: without it the rest is of no account."""
        self._new.close()
        if self._segments.is_closed:
            return False
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
