"""Ledgers in files, filled for those who read them."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.disk.durability import Durability
from logstore.disk.files import FileSystem
from logstore.partition.log_config import LogConfig
from logstore.segments.file_ledger import FileLedger
from logstore.sync.group_commit import GroupCommit
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import BatchHeader, SimpleRecord, build_batch


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
    ledger.open(0)
    batches = []
    for offset, size in enumerate(value_sizes):
        batch = build_batch([SimpleRecord(None, bytes(size), offset)], base_offset=offset)
        ledger.append(batch, BatchHeader.parse(batch))
        batches.append(bytes(batch))
    executor.run()
    return ledger, batches
