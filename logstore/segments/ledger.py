"""The seam to storage: one partition's sequence of record batches, and small attachments beside it.

A ledger knows batches, offsets and durability; it knows no producers and no transactions
(`PartitionLog` does). All calls come from the event loop's thread, `read_cold` works in a thread
of its own. The invariants:

- `start_offset <= durable_end_offset <= end_offset`; what is read is asked for by an `end_offset`
  of the caller's, who shows nobody anything past `durable_end_offset`.
- Offsets are contiguous: a batch begins at `end_offset`, or it is a bug of the caller (an
  assertion).
- An append is a whole batch or none. A `StorageFailure` is final: nothing is retried, the process
  stops and recovers.
- After `open`, all that was ever durable is there, a prefix of what was appended, and everything
  in it is durable.

Implementations: `FileLedger`, `MemoryLedger`; one contract test serves both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from logstore.disk.barriers import Procedure
from logstore.disk.files import Buffer
from wire.records import BatchHeader


class LedgerFenced(Exception):
    """A ledger was opened with a lower epoch than one that has already written to it."""


class TimestampOffset(NamedTuple):
    """A record's place and time, as ListOffsets answers it."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class SegmentFacts(NamedTuple):
    """What is known of one segment without reading it. `end_offset`: where the next one begins."""

    base_offset: int
    end_offset: int
    size_bytes: int
    #: -1: no record has one. None: not known before `Ledger.read_max_timestamp`.
    max_timestamp_ms: int | None


class SegmentLimits(Protocol):
    """Kafka's topic configs that shape segments, by their names."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...
    @property
    def flush_messages(self) -> int: ...


_Result = TypeVar("_Result")


class Runner(Protocol):
    """Does some work aside, and returns what it returns: in a thread, but for tests."""

    def __call__(self, work: Callable[[], _Result]) -> Awaitable[_Result]: ...


class SealedSegment(Protocol):
    """A segment below the active one, being read. Its batches stay until it is closed."""

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield its batches. In any thread. Raises OSError."""
        ...

    def close(self) -> None: ...


class Replacement(Protocol):
    """What is to take the place of segments. End it by `swap` or `abandon`."""

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Write a whole batch behind the last one. In a thread. Raises OSError."""
        ...

    def seal(self, aborted: bytes) -> None:
        """Make all of it durable, and its part of the aborted index. In a thread."""
        ...

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        """Take the segments' place, durably; False if they are not there any more.

        `on_swapped` is called in the step in which readers begin to be given the new one. Raises
        StorageFailure.
        """
        ...

    def abandon(self) -> None:
        """Leave nothing of it."""
        ...


class Ledger(Protocol):
    """One partition's batches. `end_` offsets are exclusive, `start_` and `first_` inclusive."""

    #: Called on the event loop with the new durable end offset after it moved, once per sync,
    #: before any waiter resumes; by then every ledger covered by the same sync has its new
    #: `durable_end_offset`.
    on_durable: Callable[[int], None]

    #: Called inside `append`, before anything is written, when a new segment is about to begin;
    #: with its base offset, which is the log's end at that moment. The time for a snapshot.
    on_roll: Callable[[int], None]

    @property
    def start_offset(self) -> int:
        """The first offset that may be read. It may lie inside a batch."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset that the next batch will have, durable or not."""
        ...

    @property
    def durable_end_offset(self) -> int:
        """Everything below is durable in the sense of the configured `Durability`."""
        ...

    @property
    def recovery_point(self) -> int:
        """Everything below is durable and indexed: worth a checkpoint, recovery may begin here."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches stored."""
        ...

    @property
    def durable_bytes(self) -> int:
        """Bytes appended since `open` that are durable. Only grows, whatever is trimmed."""
        ...

    @property
    def segment_base_offsets(self) -> Sequence[int]:
        """The base offsets of all segments, ascending. The last one is the active segment's."""
        ...

    def segment_facts(self) -> Iterator[SegmentFacts]:
        """Yield what is known of each segment, the oldest first; the last one is the active one.

        To be consumed before anything else is asked of the ledger.
        """
        ...

    async def read_max_timestamp(self, base_offset: int) -> None:
        """Read, in a thread, what `segment_facts` does not know of that segment, if it is there."""
        ...

    def open(self, epoch: int) -> None:
        """Fence every lower epoch, then recover the tail; returns when all that is left is durable.

        Raises `LedgerFenced` if a higher epoch has written. Blocks: at start only.
        """
        ...

    def opening(self, epoch: int) -> Procedure[None]:
        """As `open`, without blocking for the syncs."""
        ...

    def opened(self) -> None:
        """All that opening looks for beside the batches has been read; forget what serves that."""
        ...

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
    ) -> None:
        """Write one whole batch, which the caller has placed (base offset, leader epoch).

        Goes to the page cache and returns; wait with `durable(end_offset)`. `batch` is not kept,
        nor copied where avoidable. With `may_wait` nobody waits for it yet: it needs no sync of
        its own until somebody calls `durable`, or some time has passed. With `is_atomic`, where
        `GroupCommit.is_atomic`, it survives a crash only if all does that was appended before it,
        to whichever ledger, in this step of the event loop. Raises `StorageFailure`, then nothing
        of the batch is visible and the ledger takes no more.
        """
        ...

    async def durable(self, end_offset: int) -> None:
        """Return once `durable_end_offset >= end_offset`.

        Raises `StorageFailure` or `LedgerClosed` if it will never be.
        """
        ...

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        """As `durable`; None where it is already. Who asked first is woken first."""
        ...

    async def settled(self) -> None:
        """Return when all that is durable is so in the ledger's own segments, as cleaning needs it.

        As `durable`.
        """
        ...

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview | None:
        """Return whole batches from the one containing `offset` on, none that ends past
        `end_offset`.

        At most `max_bytes`, but with `at_least_one` the first batch whole, however large. Empty
        when nothing fits or nothing is there. None: the disk would be waited for, use
        `read_cold`. May return less than is there (reads end with a segment). Expects
        `start_offset <= offset <= self.end_offset`.
        """
        ...

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        """As `read`, in a thread: never None. A trim meanwhile takes nothing from the reader."""
        ...

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield every batch header from the one containing `from_offset` on. Blocks: for replay."""
        ...

    def batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """As `headers`, with each whole batch. The memoryview is the caller's to keep."""
        ...

    def batch_at(self, offset: int) -> memoryview | None:
        """The batch that contains `offset`; the next one where there is a gap; None at the end."""
        ...

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        """The first record below `end_offset` whose timestamp is `>= timestamp_ms`, from
        `start_offset` on."""
        ...

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all."""
        ...

    def roll(self) -> None:
        """End the active segment, unless it is empty, so that a trim can delete it whole.

        The new segment is durable on return. Expects that everything else is. Blocks for syncs.
        """
        ...

    def trim(self, start_offset: int) -> None:
        """Forget everything below `start_offset`, which may be in mid-batch. Whole segments are
        deleted, but never the active one.

        Never moves back, never beyond `durable_end_offset`. The caller makes the start offset
        itself durable first.
        """
        ...

    def read_sealed(self, base_offset: int) -> SealedSegment | None:
        """Open that segment for reading in a thread; None: it is not there, or it is active."""
        ...

    def replacement(self, base_offsets: Sequence[int]) -> Replacement | None:
        """Begin what is to take the place of these segments, which are next to one another.

        None: they are not there, or one is active. Raises OSError.
        """
        ...

    def flush(self) -> bool:
        """Begin a sync of everything, where durability asks for less; whether there was anything.

        What was written before is on the disk when the next sync has ended.
        """
        ...

    def reconfigure(self, limits: SegmentLimits) -> None:
        """Shape segments by `limits` from the next append on."""
        ...

    def write_attachment(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace an attachment atomically. Blocks for the syncs.

        With `sync=False` atomic against the end of the process only: after power loss the file
        may be the old or the new one, absent, empty or torn, so it needs a checksum of its own.
        """
        ...

    def replacing_attachment(self, name: str, data: Buffer) -> Procedure[None]:
        """As `write_attachment`, durably, without blocking for the syncs."""
        ...

    def append_attachment(self, name: str, data: Buffer) -> None:
        """Append to an attachment; durable with the batches appended in the same step, or later.

        After power loss it may end anywhere, torn, unless that batch became durable.
        """
        ...

    def read_attachment(self, name: str) -> bytes | None:
        """The attachment's bytes, None if there is none."""
        ...

    def list_attachments(self) -> list[str]:
        """The names of all attachments, sorted."""
        ...

    def delete_attachment(self, name: str) -> None:
        """Delete an attachment, if it exists. Not synced: it may be back after power loss."""
        ...

    def securing(self) -> Procedure[None]:
        """Make everything durable for `close`, which is to follow with nothing between; then
        `recovery_point` is the end.
        """
        ...

    def close(self, *, clean: bool) -> None:
        """Release everything. `clean`: all is synced first, and `recovery_point` is the end."""
        ...
