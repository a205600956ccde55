"""The seam to storage: one partition's sequence of record batches, and small attachments beside it.

A ledger knows batches, offsets and durability. It knows no producers and no transactions
(`PartitionLog` does). Three parts of it stand behind protocols of their own, so that a user depends
on the smallest one that serves: `Batches` to read, `Segments` for retention and the cleaner,
`Attachments` for small files. All calls come from the event loop's thread, unless a docstring says
otherwise. The invariants:

- `start_offset <= durable_end_offset <= end_offset`. A reader names an `end_offset` of its own and
  must not show anything past `durable_end_offset`.
- Offsets are contiguous: a batch begins at `end_offset`. Anything else is a bug of the caller (an
  assertion).
- An append is a whole batch or none. A `StorageFailure` is final: nothing is retried, the process
  stops and recovers.
- After opening, all that was ever durable is there, as a prefix of what was appended, and
  everything in it is durable.

Implementations: `FileLedger`, `MemoryLedger` and `RemoteLedger`; one contract test serves all. For
a remote one (PostgreSQL and objects) the caller awaits the connection and the fencing before it
makes the ledger, whose barriers name nothing, for there is no local file to sync.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from logstore.disk.barriers import Procedure
from logstore.disk.file_range import FileRange
from logstore.disk.files import Buffer, StorageFailure
from logstore.disk.pieces import Piece
from logstore.sync.group_commit import Waiter
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader

_Result = TypeVar("_Result")

#: A sector that the disk cannot read, and what file systems answer for a checksum that is wrong.
UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
#: Another program has deleted or moved a file, has taken the right to open it, or has put a
#: directory, a pipe, a socket, a device or a circle of links in its place.
GONE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ESTALE,
        errno.EISDIR,
        errno.ENXIO,
        errno.ELOOP,
    }
)


class LedgerFenced(Exception):
    """A ledger was opened with a lower epoch than one that has already written to it."""


class NotReadYet(Exception):
    """A slow store goes on with a read; a later read at the same offset finds what came."""


class Unreadable(KafkaError):
    """A part of a segment cannot be read, or is not what was written there.

    Everything outside that part can be read and written.
    """

    def __init__(self, where: str, error: OSError, *, is_damaged: bool) -> None:
        code = ErrorCode.CORRUPT_MESSAGE if is_damaged else ErrorCode.KAFKA_STORAGE_ERROR
        super().__init__(code, f"{where} cannot be read: {error}")


class DamagedLog(StorageFailure):
    """A start has to know all of a log, and a part of it is not what was written."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(
            f"{path}: no whole batch stands at byte {position}: the disk has lost or changed what"
            " was synced. magnetar check DATA says what is left, and magnetar repair DATA goes on"
            " with that"
        )


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
    #: -1: no record has one. None: not known before `Segments.read_max_timestamp`.
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


class Runner(Protocol):
    """Does blocking work aside and returns its result: in a thread, except in tests."""

    def __call__(self, work: Callable[[], _Result]) -> Awaitable[_Result]: ...


class SealedSegment(Protocol):
    """A segment below the active one, being read. Its batches stay until `close`."""

    @property
    def descriptor(self) -> int:
        """The operating system's descriptor of its file, -1 if there is none. Raises OSError."""

    @property
    def size_bytes(self) -> int:
        """The bytes that it should have: those of its facts, without what was given up since."""

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield its batches. In any thread. Raises OSError."""

    def close(self) -> None: ...


class SharedFile(NamedTuple):
    """An empty file that another process writes batches to."""

    descriptor: int
    #: Accounts for a batch that the other process has written, or will have before `seal`.
    account: Callable[[BatchHeader], None]


class Replacement(Protocol):
    """One new segment that takes the place of several. End it by `swap` or `abandon`."""

    @property
    def shared(self) -> SharedFile | None:
        """Its file, for another process that writes the batches. None: there is none."""

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Write a whole batch behind the last one. In a thread. Raises OSError."""

    def seal(self, aborted: bytes) -> None:
        """Make the new segment durable, with `aborted` as its aborted index. In a thread."""

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        """Take the segments' place, durably. Returns False if they are not there any more.

        Calls `on_swapped` in the step in which readers begin to see the new segment. Raises
        StorageFailure.
        """

    def abandon(self) -> None:
        """Delete what was written. The old segments stay."""


class Batches(Protocol):
    """Reading batches. A reader names the `end_offset` that it may see; see the module."""

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview | FileRange | None:
        """Return whole batches from the one containing `offset` on, none that ends past
        `end_offset`.

        At most `max_bytes`, but with `at_least_one` the first batch whole, however large. Empty
        when nothing fits or nothing is there. None: the read would wait for the disk, use
        `read_cold`. May return less than is there (a read ends with a segment). Expects `offset`
        between the ledger's start and end, both inclusive. Of many bytes it returns the place in
        their file, and reads nothing.
        """

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        """Read as `read` does, in a thread: never None. A trim meanwhile does not disturb it.

        Raises NotReadYet: a store that is slow goes on reading.
        """

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Return the bytes of the batches in [offset, end_offset): exact at the log's end.

        Elsewhere up to an index interval off, and a segment whose index is not in memory counts
        whole. Reads nothing.
        """

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield every batch header from the one containing `from_offset` on, or from the next one
        after a gap. Blocks.
        """

    def iterate(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield as `headers` does, with each whole batch, which the caller may keep: for replay.

        Raises DamagedLog where a batch is not what was written, before it is yielded.
        """

    async def offset_for_timestamp(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        """Return the first record from `start_offset` on that is not before `timestamp_ms`.

        None where there is none, or it does not lie below `end_offset`. Reads in a thread.
        """

    async def max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        """Return the first record that has the largest timestamp of all below `end_offset`.

        `end_offset` lies between two batches. Reads in a thread.
        """


class Segments(Protocol):
    """The segments of a ledger, for retention and the cleaner. Only the last one is active."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches stored."""

    @property
    def base_offsets(self) -> Sequence[int]:
        """The base offsets of all segments, ascending."""

    def facts(self) -> Iterator[SegmentFacts]:
        """Yield what is known of each segment, the oldest first, the active one last.

        Consume it before the next call of the ledger.
        """

    async def read_max_timestamp(self, base_offset: int) -> None:
        """Read, in a thread, the largest timestamp that `facts` does not know of that segment.

        A segment that is gone is passed over. One whose file another program has deleted counts as
        without a timestamp from then on, until a read finds the file. Raises Unreadable.
        """

    async def read_sealed(self, base_offset: int) -> SealedSegment | None:
        """Open that segment for reading in a thread. None: it is gone, or it is active."""

    def replacement(self, base_offsets: Sequence[int]) -> Replacement | None:
        """Begin the segment that takes the place of these, which are next to one another.

        None: one of them is gone, or active. Raises OSError.
        """


class TrimmedSegment(Protocol):
    """A segment wholly below the start offset, which the last process has not deleted."""

    base_offset: int

    def whole_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches, each with its data or, of a large one, the beginning of that."""


class Attachments(Protocol):
    """Small files beside a ledger's batches, by name."""

    def write(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace an attachment atomically. Blocks for the syncs.

        With `sync=False` atomic against the end of the process only: after power loss the file
        may be the old or the new one, absent, empty or torn, so it needs a checksum of its own.
        """

    def replacing(
        self, name: str, pieces: Iterable[Piece], *, sync: bool = True
    ) -> Procedure[None]:
        """Replace an attachment as `write` does, without blocking for the syncs.

        Others get their turn between two pieces.
        """

    def carry_out(
        self, procedure: Procedure[None], is_wanted: Callable[[], bool], done: Waiter
    ) -> None:
        """Do a procedure of `replacing`, with the syncs beside the event loop, which does other
        work at each turn.

        Calls `done` afterwards, on the event loop; with the failure, if the storage failed. Gives
        up, without `done`, where `is_wanted` is false after a sync or a turn; it must be false once
        the ledger is closed.
        """

    def append(self, name: str, data: Buffer) -> None:
        """Append to an attachment. Durable with the batches appended in the same step, or later.

        After power loss it may end anywhere, torn, unless that batch became durable.
        """

    def read(self, name: str) -> bytes | None:
        """Return the attachment's bytes, None if there is none."""

    def names(self) -> list[str]:
        """Return the names of all attachments, sorted."""

    def delete(self, name: str) -> None:
        """Delete an attachment, if it exists. Not synced: it may be back after power loss."""

    def discard(self, names: Iterable[str]) -> None:
        """Delete attachments as `delete` does; their files go later, as those of segments do."""


class Appends(Protocol):
    """The end of a ledger: appends, and when they are durable."""

    #: Called on the event loop with the new durable end offset after it moved, once per sync,
    #: before any waiter resumes. Every ledger covered by the same sync has its new
    #: `durable_end_offset` by then.
    on_durable: Callable[[int], None]

    @property
    def start_offset(self) -> int:
        """The first offset that may be read. It may lie inside a batch."""

    @property
    def end_offset(self) -> int:
        """The offset that the next batch will have, durable or not."""

    @property
    def durable_end_offset(self) -> int:
        """Everything below is durable in the sense of the configured `Durability`."""

    @property
    def is_synced_with_others(self) -> bool:
        """Whether a sync covers all that was appended before it began, to whichever ledger."""

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
        is_refusable: bool = False,
    ) -> None:
        """Write one whole batch, which the caller has placed (base offset, leader epoch).

        Goes to the page cache and returns; wait with `until_durable(end_offset)`. `batch` is not
        kept. With `may_wait` the batch needs no sync of its own until `until_durable` is called or
        `UNSYNCED_S_MAX` seconds have passed. With `is_atomic`, if `GroupCommit.is_atomic`, it
        survives a crash only together with all that was appended before it, to any ledger, in this
        step of the event loop. Raises `StorageFailure`: nothing of the batch is visible then, and
        the ledger takes no more. With `is_refusable` raises `NoRoom` on a full disk: then nothing
        has changed.
        """

    def check_open(self) -> None:
        """Raise `StorageFailure` or `LedgerClosed` if nothing becomes durable any more."""

    def when_durable(self, end_offset: int, waiter: Waiter) -> bool:
        """Call `waiter` in the step in which `durable_end_offset >= end_offset`; False: it is so.

        Cheaper than a future, for the hundreds of requests that one sync serves. Order and failures
        as for `until_durable`.
        """

    def is_ordered(self, end_offset: int) -> bool:
        """Return whether everything below `end_offset` is ordered: what any node writes from then
        on survives no crash without it. It may not be read yet (`logstore.sync.committed_ledger`).
        """

    def when_ordered(self, end_offset: int, waiter: Waiter) -> bool:
        """Call `waiter` once `is_ordered(end_offset)`; False: it is so. Failures as of
        `when_durable`."""

    def until_ordered(self, end_offset: int) -> asyncio.Future[None] | None:
        """As `until_durable`, of `is_ordered`."""

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        """Return a future that resolves once `durable_end_offset >= end_offset`; None: it is.

        Futures resolve in the order of the calls. The future fails with `StorageFailure` or
        `LedgerClosed` if the offset will never be durable; the call raises these if that is known.
        """

    def flush(self) -> bool:
        """Begin a sync of everything where durability asks for less. False: nothing to sync.

        What was written before is on the disk when the next sync has ended.
        """

    async def settled(self) -> None:
        """Return when everything durable is durable in its own segment. Cleaning depends on it.

        Raises StorageFailure.
        """


class Lifetime(Protocol):
    """Opening and closing a ledger, in step with many others (`disk.barriers`)."""

    @property
    def recovery_point(self) -> int:
        """Everything below is durable and indexed: worth a checkpoint, recovery may begin here."""

    @property
    def is_read_by_kafka(self) -> bool:
        """Whether Kafka and its tools may read the files beside the log."""

    @property
    def has_files(self) -> bool:
        """Whether the first append after an opening makes or opens files."""

    @property
    def trimmed(self) -> Sequence[TrimmedSegment]:
        """What opening has found below the start offset, ascending, until `opened`.

        None of it is in `batches` or `segments`, and perhaps no snapshot tells of it.
        """

    def opening(self, epoch: int) -> Procedure[None]:
        """Fence every lower epoch, then recover the tail. At its end all that is left is durable.

        Raises `LedgerFenced` if a higher epoch has written.
        """

    def opened(self) -> None:
        """Forget what served opening alone, and delete `trimmed`: its caller has read all that it
        needs of attachments and segments, and made durable what these alone told."""

    def securing(self) -> Procedure[None]:
        """Make everything durable, so that `recovery_point` is the end. `close` must follow with
        nothing between."""

    def close(self) -> None:
        """Release everything. Without `securing` before it, the next opening recovers the tail."""


class Ledger(Appends, Lifetime, Protocol):
    """One partition's storage. `end_` offsets are exclusive, `start_` and `first_` inclusive."""

    #: Called inside `append` or `roll`, before anything is written, when a new segment is about to
    #: begin; with its base offset, the log's end at that moment. The time for a snapshot.
    on_roll: Callable[[int], None]

    @property
    def batches(self) -> Batches: ...
    @property
    def segments(self) -> Segments: ...
    @property
    def attachments(self) -> Attachments: ...

    def roll(self) -> None:
        """End the active segment, unless it is empty, so that a trim can delete it whole.

        Expects that everything is durable. The new segment is, once a file beside it that was
        written later has a durable name: a snapshot that `on_roll` has taken.
        """

    def trim(self, start_offset: int) -> None:
        """Forget everything below `start_offset`, which may be in mid-batch. Whole segments are
        deleted, but never the active one.

        Never moves back, never beyond `durable_end_offset`. The caller makes the start offset
        itself durable first.
        """

    def reconfigure(self, limits: SegmentLimits) -> None:
        """Shape segments by `limits` from the next append on."""
