"""Ledgers for tests: opened, closed and crashed at once, and filled to be read."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.disk.barriers import Procedure, perform
from logstore.disk.durability import Durability
from logstore.disk.files import FileSystem
from logstore.partition.log_config import LogConfig
from logstore.remote.remote_ledger import RemoteLedger
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import Appends, Ledger
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import CommittedLedger, GroupCommit
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import BatchHeader, SimpleRecord, build_batch
from wire.records.header import NO_TIMESTAMP

Stored = FileLedger | MemoryLedger | RemoteLedger


def _perform(ledger: Stored, procedure: Procedure[None]) -> None:
    if isinstance(ledger, FileLedger):
        with ledger._group_commit.storing("ledger"):
            perform(ledger._files, procedure)
    else:
        for barrier in procedure:
            raise AssertionError(f"{barrier} in memory")


def open_now(ledger: Stored, epoch: int = 0) -> None:
    """Open a ledger, waiting for its syncs."""
    _perform(ledger, ledger.opening(epoch))
    if isinstance(ledger, RemoteLedger):
        ledger.opened()


def close_cleanly(ledger: Ledger) -> None:
    """Make everything durable, unless the storage has failed, and close."""
    assert isinstance(ledger, FileLedger | MemoryLedger | RemoteLedger)
    if ledger._group_commit.failure is None:
        _perform(ledger, ledger.securing())
    if isinstance(ledger, RemoteLedger):
        executor = ledger._group_commit._executor
        assert isinstance(executor, SteppedExecutor)
        executor.run()
    ledger.close()


async def durable(ledger: Appends | CommittedLedger, end_offset: int) -> None:
    """Return once everything below `end_offset` is durable."""
    waiter = ledger.until_durable(end_offset)
    if waiter is not None:
        await waiter


def crash(ledger: MemoryLedger) -> None:
    """Lose every batch that is not durable, as power loss does; to be opened again."""
    ledger.close()
    segments, end_offset = ledger.segments, ledger.durable_end_offset
    while segments._batch_offsets and segments._batch_offsets[-1] >= end_offset:
        del segments._batch_offsets[-1]
        segments.size_bytes -= len(segments._batches.pop())
    ledger.end_offset = end_offset
    while len(segments._bases) > 1 and segments._bases[-1] >= end_offset:
        del segments._bases[-1], segments._sizes[-1], segments._max_timestamps[-1]
    active = [batch for _, batch in segments.iterate(segments._bases[-1])]
    segments._sizes[-1] = sum(map(len, active))
    segments._max_timestamps[-1] = max(
        [BatchHeader.parse(batch).max_timestamp for batch in active], default=NO_TIMESTAMP
    )


def filled(
    files: FileSystem, directory: str, limits: LogConfig, value_sizes: Iterable[int]
) -> tuple[FileLedger, list[bytes]]:
    """Return a durable ledger of one batch for each size, bytes of its one record's value; and the
    batches."""
    executor = SteppedExecutor()
    group_commit = GroupCommit(
        files, Durability.FSYNC, on_failure=lambda _: None, executor=executor
    )
    ledger = FileLedger(files, directory, group_commit, limits)
    open_now(ledger)
    batches = []
    for offset, size in enumerate(value_sizes):
        batch = build_batch([SimpleRecord(None, bytes(size), offset)], base_offset=offset)
        ledger.append(batch, BatchHeader.parse(batch))
        batches.append(bytes(batch))
    executor.run()
    return ledger, batches
