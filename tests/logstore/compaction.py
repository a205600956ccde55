"""Keyed records in transactions, and what compaction must leave of them: an oracle for its tests.

`KeyedTraffic` appends and remembers. `committed_records` reads a log as a read_committed client
does, from its start; `check_compacted` compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from logstore.cleaner.batches import Pause
from logstore.cleaner.plan import cleanable_of
from logstore.cleaner.run import Cleaned, Cleaning, Elsewhere, OffsetMapLimits
from logstore.disk.barriers import at_once
from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import replaying
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.aborted_index import AbortedTransaction
from wire.records import (
    BatchHeader,
    Compression,
    ControlType,
    SimpleRecord,
    build_batch,
    iterate_batches,
    iterate_records,
    parse_marker,
)

_T = TypeVar("_T")
#: A fetch of few batches at a time, so that positions inside gaps are met.
_FETCH_BYTES = 400


@dataclass(slots=True)
class Sent:
    """A record as it was appended. `is_committed` is None while its transaction is open."""

    producer_id: int
    key: bytes
    value: bytes | None
    is_committed: bool | None


@dataclass(slots=True)
class _Producer:
    producer_id: int
    sequence: int = 0
    epoch: int = 0
    open_offsets: list[int] = field(default_factory=list)


class KeyedTraffic:
    """Some producers of keyed records. Set `log` again after a restart, and call `recovered`."""

    def __init__(self, log: PartitionLog, producers: int = 3) -> None:
        self.log = log
        self.now_ms = 1_000
        #: Every record ever appended, by its offset.
        self.sent: dict[int, Sent] = {}
        self._producers = [_Producer(producer_id) for producer_id in range(producers)]
        self._values = 0

    def write(
        self,
        producer: int,
        keys: list[bytes],
        *,
        transactional: bool,
        tombstones: bool = False,
        compression: Compression = Compression.NONE,
    ) -> None:
        """Append a batch with a record for each key, with values or without."""
        self.now_ms += 1
        one = self._producers[producer]
        if one.open_offsets and not transactional:
            return
        self._values += 1
        value = None if tombstones else b"%d" % self._values
        batch = build_batch(
            [SimpleRecord(key, value, self.now_ms) for key in keys],
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            base_sequence=one.sequence,
            is_transactional=transactional,
            compression=compression,
        )
        base_offset = self.log.log_end_offset
        for offset, key in enumerate(keys, base_offset):
            self.sent[offset] = Sent(producer, key, value, None if transactional else True)
        self.log.append(self.log.check(batch, self.now_ms))
        one.sequence += len(keys)
        if transactional:
            one.open_offsets += range(base_offset, base_offset + len(keys))

    def end(self, producer: int, *, commit: bool) -> None:
        """End the producer's transaction; an empty one if none is open."""
        self.now_ms += 1
        one = self._producers[producer]
        if one.producer_id not in self.log.producers:
            return
        marker_epoch = max(one.epoch, self.log.producers[one.producer_id].producer_epoch)
        marker = TransactionMarker(one.producer_id, marker_epoch, 1, commit)
        self.log.append_marker(marker, self.now_ms)
        for offset in one.open_offsets:
            self.sent[offset].is_committed = commit
        one.open_offsets.clear()

    def recovered(self) -> None:
        """The log came back, maybe shorter: what is gone never was, what was open is aborted."""
        log = self.log
        for offset in [offset for offset in self.sent if offset >= log.log_end_offset]:
            del self.sent[offset]
        ended = _ended_transactions(log)
        for one in self._producers:
            one.open_offsets.clear()
            transaction = log.transactions.open_transaction(one.producer_id)
            if transaction is not None:
                epoch = log.producers[one.producer_id].producer_epoch
                for offset, record in self.sent.items():
                    # The marker that was written may be what is gone.
                    if record.producer_id == one.producer_id and offset >= transaction.first_offset:
                        record.is_committed = False
                abort = TransactionMarker(one.producer_id, epoch, 1, commit=False)
                log.append_marker(abort, self.now_ms)
            for offset, commit in ended.get(one.producer_id, {}).items():
                if offset in self.sent and self.sent[offset].is_committed is None:
                    self.sent[offset].is_committed = commit
            state = log.producers.get(one.producer_id)
            one.epoch = 0 if state is None else state.producer_epoch + 1
            one.sequence = 0
        for record in self.sent.values():
            if record.is_committed is None:
                record.is_committed = False


def _ended_transactions(log: PartitionLog) -> dict[int, dict[int, bool]]:
    """By producer: the offsets of transactions that have a marker, and whether they committed."""
    open_offsets: dict[int, list[int]] = {}
    ended: dict[int, dict[int, bool]] = {}
    for header, batch in log.ledger.batches.iterate(log.log_start_offset):
        if header.is_control:
            commit = parse_marker(batch).control_type is ControlType.COMMIT
            offsets = open_offsets.pop(header.producer_id, [])
            ended.setdefault(header.producer_id, {}).update(dict.fromkeys(offsets, commit))
        elif header.is_transactional:
            span = range(header.base_offset, header.next_offset)
            open_offsets.setdefault(header.producer_id, []).extend(span)
    return ended


def perform(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    raise AssertionError("it waits")


def perform_beside(settle: Callable[[], object], coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run what waits for nothing but the disk; `settle` makes all durable."""

    async def run() -> _T:
        task = asyncio.get_running_loop().create_task(coroutine)
        while not task.done():
            await asyncio.sleep(0)
            settle()
        return await task

    return asyncio.run(run())


def clean(
    log: PartitionLog,
    now_ms: int,
    settle: Callable[[], None],
    limits: OffsetMapLimits | None = None,
    elsewhere: Elsewhere | None = None,
    pause: Pause = lambda _: None,
) -> Cleaned | None:
    """Clean all that may be cleaned, now; None if nothing is dirty. `settle` makes all durable."""

    async def run_here(work: Any) -> Any:
        done = work()
        settle()
        return done

    found = cleanable_of(log, now_ms)
    if not found.dirty_bytes:
        return None
    cleaning = Cleaning(
        log, found, now_ms, run=run_here, pause=pause, limits=limits, elsewhere=elsewhere
    )
    return perform_beside(settle, cleaning.perform())


def committed_records(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What a read_committed client that begins at the log's start is given, by offset.

    Skips aborted records as Kafka's consumer does. An assertion fails where it would not get on.
    """
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    position = log.log_start_offset
    while position < log.last_stable_offset:
        next(log.ledger.batches.headers(position))  # its segment's indexes are in memory now
        piece = log.reader.read(position, _FETCH_BYTES, Isolation.READ_COMMITTED)
        assert piece is not None and piece.aborted is not None
        headers = list(iterate_batches(piece.records))
        assert headers, f"nothing to read at {position}, below {log.last_stable_offset}"
        records = _without_aborted(headers, piece.aborted)
        found |= {offset: record for offset, record in records.items() if offset >= position}
        assert headers[-1][0].next_offset > position, "the position stays"
        position = headers[-1][0].next_offset
    return found


def _without_aborted(
    batches: list[tuple[BatchHeader, memoryview]], aborted: list[AbortedTransaction]
) -> dict[int, tuple[bytes | None, bytes | None]]:
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    skipped: set[int] = set()
    records: dict[int, tuple[bytes | None, bytes | None]] = {}
    for header, batch in batches:
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipped.add(waiting.pop(0).producer_id)
        if header.is_control:
            if header.record_count and parse_marker(batch).control_type is ControlType.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            records |= {one.offset: (one.key, one.value) for one in iterate_records(batch)}
    return records


def check_compacted(log: PartitionLog, sent: dict[int, Sent]) -> None:
    """Every key has its latest committed value, at its offset, and nothing aborted is shown.

    A key whose latest is a tombstone may be gone.
    """
    shown = committed_records(log)
    latest: dict[bytes, int] = {}
    for offset, record in sent.items():
        if offset < log.last_stable_offset and record.is_committed:
            latest[record.key] = max(offset, latest.get(record.key, -1))
    shown_latest: dict[bytes, int] = {}
    for offset, (key, value) in shown.items():
        original = sent[offset]
        assert original.is_committed, f"offset {offset} is of an aborted or open transaction"
        assert (key, value) == (original.key, original.value), f"offset {offset} has changed"
        shown_latest[original.key] = max(offset, shown_latest.get(original.key, -1))
    for key, offset in latest.items():
        is_tombstone = sent[offset].value is None
        found = shown_latest.get(key)
        assert found == offset or (is_tombstone and found is None), (key, offset, found)


def check_replay(log: PartitionLog, now_ms: int) -> None:
    """The state replayed from all that is left equals the live one, but for aborted transactions
    of which nothing is left."""
    first_offset = next(iter(log.ledger.segments.base_offsets), log.log_start_offset)
    state = PartitionState(first_offset)
    at_once(replaying(log.ledger, state, now_ms))
    live = log.state
    assert state.producers == live.producers, (state.producers, live.producers)
    assert state.end_offset == live.end_offset
    assert state.last_batch_crc == live.last_batch_crc
    assert list(state.transactions.open_transactions()) == list(
        live.transactions.open_transactions()
    )
    batches = [
        (header.producer_id, header.base_offset)
        for header in log.ledger.batches.headers(first_offset)
        if header.is_transactional and not header.is_control
    ]
    with_data = {
        (entry.producer_id, entry.last_offset)
        for entry in live.transactions.aborted
        if any(
            producer_id == entry.producer_id and entry.first_offset <= offset < entry.last_offset
            for producer_id, offset in batches
        )
    }
    replayed = {(entry.producer_id, entry.last_offset) for entry in state.transactions.aborted}
    assert replayed == with_data
