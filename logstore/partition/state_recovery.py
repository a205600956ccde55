"""How a partition's state comes back: the newest valid snapshot, then the headers after it.

The ledger has recovered its batches first, so its end is final and durable. Snapshots and aborted
entries beyond that end are deleted before anything is appended. A snapshot that is torn, of another
log, or contradicted by the aborted index gives way to the next older one, and in the end to a
replay of the whole log.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from logstore.disk.barriers import TURN, Procedure
from logstore.disk.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, decode_leader_epochs
from logstore.partition.leader_epochs import LeaderEpochs
from logstore.partition.snapshot import SUFFIX, CorruptSnapshot, decode_snapshot, decoding_snapshot
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshot_kafka import decode_kafka_snapshot
from logstore.partition.snapshots import Snapshots, snapshot_name, snapshot_offsets
from logstore.partition.state import PartitionState
from logstore.segments.aborted_index import AbortedIndex, CorruptIndex, decode_entries
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.ledger import Ledger
from logstore.segments.names import ABORTED_SUFFIX, aborted_name
from wire.errors import WireError
from wire.records import BatchHeader, ControlType, parse_marker
from wire.records.header import OFFSET_MAX

#: How many batches are replayed in one step: two milliseconds.
_BATCHES_A_TURN = 256
#: A state of up to this size is kept at a clean stop: that of some fifty producers.
STATE_BYTES_MAX = 16 * 1024


class ClosedLog(NamedTuple):
    """What is known of one log at a clean stop, so that the next start need not find it out."""

    #: As it stands in partition.metadata; None: perhaps it does not.
    topic_id: UUID | None
    ledger: ClosedSegments
    #: End offsets of the snapshots that lie beside it, ascending: ours, and Kafka's.
    snapshots: list[int]
    kafka_snapshots: list[int]
    #: As `encode_snapshot` has it.
    state: bytes


def recovering(
    ledger: Ledger,
    snapshots: Snapshots,
    steady_ms: int,
    *,
    was_clean: bool,
    closed: ClosedLog | None,
) -> Procedure[PartitionState]:
    """Return the state as of the end of an opened ledger; `snapshots` goes on from what it found.

    `closed`: how the log was closed, if its files are as they were then.
    """
    if closed is not None:
        state = state_as_closed(ledger, closed.state)
        if state is not None:
            state.producers.resume(steady_ms)
            snapshots.resume(closed.snapshots, closed.kafka_snapshots)
            return state
    if not ledger.segments.base_offsets and not ledger.trimmed and not ledger.attachments.names():
        # A new log: thousands are made by one request.
        return PartitionState(ledger.end_offset)
    state = yield from _recovering(ledger, snapshots, steady_ms)
    yield from snapshots.beginning(state, was_clean=was_clean)
    return state


def _recovering(ledger: Ledger, snapshots: Snapshots, steady_ms: int) -> Procedure[PartitionState]:
    """Return the state as of the end of an opened ledger, everything in it stable. Reads in turns.

    Producers that only the log tells of count as heard of at `steady_ms`.
    """
    end_offset = ledger.end_offset
    # First: the next batches get these offsets, and a later recovery must not find old snapshots.
    delete_snapshots_beyond(ledger, end_offset)
    state = yield from _newest_state(ledger, steady_ms)
    is_without_snapshot = state.end_offset <= next(iter(ledger.segments.base_offsets), 0)
    batches, size_bytes = yield from replaying(ledger, state, steady_ms)
    snapshots.replayed(batches, size_bytes)
    if is_without_snapshot:
        # Compaction may have removed an epoch's first batch, or all its batches.
        with suppress(CorruptSnapshot):
            checkpointed = _read_leader_epochs(ledger, end_offset)
            state.leader_epochs = state.leader_epochs.merged(checkpointed)
    state.transactions.aborted.prune(ledger.start_offset)
    state.leader_epochs.prune(ledger.start_offset)
    state.transactions.stabilize(end_offset)
    _repair_aborted_files(ledger, state.transactions.aborted)
    return state


def state_as_closed(ledger: Ledger, data: bytes) -> PartitionState | None:
    """Return the state of a log from what was kept when it was closed.

    None: the aborted index contradicts it, so `_recovering` has to do the work.
    """
    snapshot = decode_snapshot(data)
    state, start_offset = snapshot.state, ledger.start_offset
    assert state.end_offset == ledger.end_offset, "the state is not of this log's end"
    if snapshot.last_aborted_offset >= start_offset:
        aborted, is_whole = _read_aborted(ledger, state.end_offset)
        if not is_whole or aborted.last_offset != snapshot.last_aborted_offset:
            return None
        state.transactions.aborted = aborted
    state.leader_epochs.prune(start_offset)
    state.transactions.stabilize(state.end_offset)
    return state


def replaying(ledger: Ledger, state: PartitionState, steady_ms: int) -> Procedure[tuple[int, int]]:
    """Fold every batch from `state.end_offset` to the ledger's end.

    Returns how many there were, and their bytes.
    """
    batches = size_bytes = 0
    for header, batch in ledger.batches.iterate(state.end_offset):
        replay_batch(state, header, batch, steady_ms)
        batches, size_bytes = batches + 1, size_bytes + header.size_bytes
        if batches % _BATCHES_A_TURN == 0:
            yield TURN
    state.end_offset = max(state.end_offset, ledger.end_offset)
    return batches, size_bytes


def replay_batch(
    state: PartitionState, header: BatchHeader, batch: memoryview, steady_ms: int
) -> None:
    """Account for a stored batch at the end of `state`."""
    if not header.is_control:
        state.on_batch(header, steady_ms)
        return
    try:
        marker = parse_marker(batch)
    except WireError:
        # A control batch that compaction has emptied, or one that is not about transactions.
        state.on_other(header)
    else:
        commit = marker.control_type is ControlType.COMMIT
        state.on_marker(header, marker.coordinator_epoch, steady_ms, commit=commit)


def delete_snapshots_beyond(ledger: Ledger, end_offset: int) -> None:
    """Delete the snapshots that were taken beyond the log's end."""
    for suffix in (SUFFIX, KAFKA_SUFFIX):
        for offset in snapshot_offsets(ledger.attachments.names(), suffix):
            if offset > end_offset:
                ledger.attachments.delete(snapshot_name(offset, suffix))


def _newest_state(ledger: Ledger, steady_ms: int) -> Procedure[PartitionState]:
    """Return the newest snapshot that holds against the log, or the state at its first batch.

    Kafka's only where there is none of ours, however old: it remembers one batch per producer. The
    first batch may lie below the start offset. A segment's end had its snapshot before the segment
    was deleted, so no transaction that began there is lost, and no producer last heard of there.
    """
    first_offset = next(iter(ledger.segments.base_offsets), ledger.start_offset)
    state = yield from _newest_snapshot(ledger, first_offset, ledger.end_offset, steady_ms)
    if state is None:
        state = yield from _state_before(ledger, first_offset, steady_ms)
    return state


def _state_before(ledger: Ledger, first_offset: int, steady_ms: int) -> Procedure[PartitionState]:
    """Return the state at the log's first batch, of which no snapshot tells.

    Empty, unless the segments before it are still there: the start offset was at a roll, and the
    process ended before that roll's snapshot had its name.
    """
    trimmed_offset = next((segment.base_offset for segment in ledger.trimmed), first_offset)
    state = yield from _newest_snapshot(ledger, trimmed_offset, first_offset - 1, steady_ms)
    if state is None:
        state = PartitionState(trimmed_offset)
    for segment in ledger.trimmed:
        for header, batch in segment.whole_batches():
            if header.base_offset >= state.end_offset:
                replay_batch(state, header, batch, steady_ms)
    state.end_offset = first_offset
    return state


def _newest_snapshot(
    ledger: Ledger, first_offset: int, last_offset: int, steady_ms: int
) -> Procedure[PartitionState | None]:
    """Return the newest snapshot in a range of offsets that holds against the log, if any."""
    candidates = [
        (offset, suffix)
        for suffix in (SUFFIX, KAFKA_SUFFIX)
        for offset in reversed(snapshot_offsets(ledger.attachments.names(), suffix))
        if first_offset <= offset <= last_offset
    ]
    for offset, suffix in candidates:
        try:
            return (yield from _state_at(ledger, offset, suffix, steady_ms))
        except CorruptSnapshot:
            # Not fatal: an older snapshot, or the log itself, tells the same. This one is useless.
            ledger.attachments.delete(snapshot_name(offset, suffix))
        except CorruptIndex:
            # Older snapshots need the same index. Only a replay of the log does without.
            break
    return None


def _state_at(
    ledger: Ledger, offset: int, suffix: str, steady_ms: int
) -> Procedure[PartitionState]:
    data = ledger.attachments.read(snapshot_name(offset, suffix))
    if data is None:
        raise CorruptSnapshot("it is gone")
    aborted, is_whole = _read_aborted(ledger, offset)
    if suffix == KAFKA_SUFFIX:
        if not is_whole:
            raise CorruptIndex(
                "a file of aborted transactions is cut, and nothing says where it should end"
            )
        state = decode_kafka_snapshot(data, offset, steady_ms)
        state.leader_epochs = _read_leader_epochs(ledger, offset)
        before = _batch_before(ledger, offset)
        state.last_batch_crc = 0 if before is None else before.crc
    else:
        snapshot = yield from decoding_snapshot(data)
        state = snapshot.state
        if state.end_offset != offset:
            raise CorruptSnapshot(
                f"its name says offset {offset}, its contents end at {state.end_offset}"
            )
        before = _batch_before(ledger, offset)
        # A batch without records stands for others, which it says nothing about.
        if before is not None and before.record_count and before.crc != state.last_batch_crc:
            raise CorruptSnapshot("it is not of this log")
        if snapshot.last_aborted_offset >= ledger.start_offset and (
            snapshot.last_aborted_offset != aborted.last_offset
        ):
            raise CorruptIndex(f"the last abort is {snapshot.last_aborted_offset}")
        state.producers.resume(steady_ms)
    state.transactions.aborted = aborted
    return state


def _batch_before(ledger: Ledger, offset: int) -> BatchHeader | None:
    """Return the header of the batch that ends at an offset; None at the log's first batch."""
    if offset <= next(iter(ledger.segments.base_offsets), offset):
        return None
    header = next(ledger.batches.headers(offset - 1), None)
    if header is None:
        raise CorruptSnapshot(f"there is no batch before {offset}")
    if header.next_offset != offset:
        raise CorruptSnapshot(f"no batch ends at {offset}")
    return header


def _read_aborted(ledger: Ledger, end_offset: int) -> tuple[AbortedIndex, bool]:
    """Return the aborted transactions below `end_offset`, and whether all files were whole."""
    index = AbortedIndex()
    are_whole = True
    for base_offset in ledger.segments.base_offsets:
        entries, is_whole = decode_entries(
            ledger.attachments.read(aborted_name(base_offset)) or b""
        )
        are_whole &= is_whole
        for entry in entries:
            if entry.last_offset < base_offset or entry.last_offset <= index.last_offset:
                return index, False
            if ledger.start_offset <= entry.last_offset < end_offset:
                index.append(entry)
    return index, are_whole


def _read_leader_epochs(ledger: Ledger, end_offset: int) -> LeaderEpochs:
    data = ledger.attachments.read(LEADER_EPOCHS)
    if data is None:
        return LeaderEpochs()
    try:
        epochs = LeaderEpochs(decode_leader_epochs(data))
    except CorruptCheckpoint as error:
        raise CorruptSnapshot(f"the leader epoch checkpoint that it needs: {error}") from None
    epochs.truncate(end_offset)
    return epochs


def _repair_aborted_files(ledger: Ledger, aborted: AbortedIndex) -> None:
    """Make every segment's `.txnindex` say what was recovered.

    No torn tail, nothing beyond the end, and no file of a segment that is gone.
    """
    bases = [*ledger.segments.base_offsets, OFFSET_MAX]
    delete_aborted_files(ledger)
    for base_offset, end_offset in pairwise(bases):
        name = aborted_name(base_offset)
        data = ledger.attachments.read(name) or b""
        before_start = [
            entry for entry in decode_entries(data)[0] if entry.last_offset < ledger.start_offset
        ]
        entries = [*before_start, *aborted.entries(base_offset, end_offset)]
        expected = b"".join(entry.encode() for entry in entries)
        if data != expected:
            ledger.attachments.write(name, expected)


def delete_aborted_files(ledger: Ledger) -> None:
    """Delete the aborted indexes of segments that the log does not have."""
    names = {aborted_name(base_offset) for base_offset in ledger.segments.base_offsets}
    for name in ledger.attachments.names():
        if name.endswith(ABORTED_SUFFIX) and name not in names:
            ledger.attachments.delete(name)
