"""Reading a sealed segment and writing the next one: the cleaner's work.

It happens in a thread, or in the cleaner's own process, which has the files by their descriptors
alone. So this module knows no names, and imports little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from logstore.disk.files import Buffer, File
from logstore.segments.segment_reads import Readable, scan
from wire.records import BatchHeader

#: Bytes in one write, and bytes after which a sync follows: with so few dirty pages of the cleaner
#: no append's sync waits for long.
_WRITE_BYTES = 256 * 1024
_SYNC_BYTES = 2 * 1024 * 1024


class Writable(Protocol):
    """A file, or something that is written like one."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write as `File.write` does."""

    def sync(self) -> None:
        """Sync as `File.sync` does."""


class SealedFile:
    """A `.log` file being read, by a descriptor of its own."""

    def __init__(self, file: File, size_bytes: int) -> None:
        self._file = file
        self.size_bytes = size_bytes
        file.pin()

    @property
    def descriptor(self) -> int:
        """The operating system's descriptor, until `close`. -1: there is none."""
        self._file.size()  # A file that had lost its descriptor gets another.
        return self._file.descriptor

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        return scanned(self._file, self.size_bytes)

    def close(self) -> None:
        self._file.unpin()
        self._file.close()


class SealedBatches:
    """The batches of a segment that is in memory, as they were when a reader opened it."""

    descriptor = -1

    def __init__(self, batches: Sequence[tuple[BatchHeader, bytes]], size_bytes: int) -> None:
        self._batches = batches
        self.size_bytes = size_bytes

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, batch in self._batches:
            yield header, memoryview(batch)

    def close(self) -> None:
        self._batches = ()


def scanned(file: Readable, size_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a `.log` file of that size, as far as they are whole."""
    for _, header, batch in scan(file, 0, size_bytes, whole=True):
        yield header, batch


class SegmentWriter:
    """Writes whole batches one behind the other, a few hundred kilobytes at once."""

    def __init__(self, file: Writable) -> None:
        """`file` is empty."""
        self._file = file
        self._buffers: list[Buffer] = []
        self._waiting_bytes = self._written_bytes = self._synced_bytes = 0

    def append(self, batch: Buffer) -> None:
        """Write a batch, now or later. Raises OSError."""
        self._buffers.append(batch)
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= _WRITE_BYTES:
            self.flush()
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._file.sync()
            self._synced_bytes = self._written_bytes

    def flush(self) -> None:
        """Write what waits. Raises OSError."""
        if self._buffers:
            self._file.write(self._buffers, self._written_bytes)
            self._written_bytes += self._waiting_bytes
            self._buffers, self._waiting_bytes = [], 0
