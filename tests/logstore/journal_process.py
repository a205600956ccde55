"""Some partitions with a journal, on a simulated disk; and what is in its files."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from logstore.disk.durability import Durability
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.file_ledger import FileLedger
from logstore.sync.journal import JOURNAL, Entry, read_journal
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk

IDS = (UUID(int=1), UUID(int=2))
CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=200)


class Process(LogProcess):
    """Some partitions in a directory, and the process that has them open."""

    def __init__(self, disk: SimulatedDisk, durability: Durability = Durability.FSYNC) -> None:
        self.disk = disk
        self.durability = durability

    def start(
        self, count: int = 2, topic_id: UUID = IDS[0], config: LogConfig = CONFIG
    ) -> list[PartitionLog]:
        self.begin(self.disk, config, self.durability)
        self.logs = [self.directory.open("t", index, topic_id) for index in range(count)]
        return self.logs

    def append(self, index: int, *values: bytes, size: int = 0) -> None:
        log = self.logs[index]
        log.append(log.check(batch_of(*values, bytes(size)) if size else batch_of(*values), NOW_MS))

    def append_all(self, *values: bytes) -> None:
        for index in range(len(self.logs)):
            self.append(index, *values)
        self.executor.run()


def stored(log: PartitionLog) -> bytes:
    """What is in the file of the active segment."""
    base = log.ledger.segments.base_offsets[-1]
    assert isinstance(log.ledger, FileLedger)
    return read_file(log.ledger._files, f"/data/t-{log.partition}/{base:020d}.log")


def read_file(disk: Any, path: str) -> bytes:
    file = disk.open(path)
    try:
        content: bytes = file.read(file.size(), 0)
    finally:
        file.close()
    return content


def journal_of(disk: SimulatedDisk) -> list[Entry]:
    entries, damaged_at = read_journal(read_file(disk, f"/data/{JOURNAL}"))
    assert not damaged_at
    return entries


def marker(producer_id: int = 0) -> TransactionMarker:
    return TransactionMarker(producer_id, 0, 0, True, 1)


_append = FileLedger.append


def append_at_once(ledger: FileLedger, *args: Any, may_wait: bool = False, **_: object) -> None:
    """`FileLedger.append` with a rule broken: what is to be atomic is not held back."""
    _append(ledger, *args, may_wait=may_wait)
