"""A partition over a ledger in memory, driven step by step; and batches to feed it.

For tests of several packages: nothing becomes durable until `settle`, `restart` opens the same
bytes again, `crash` loses what is not durable first.
"""

from __future__ import annotations

from logstore.disk.barriers import at_once
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.client_batch import Appended
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.ledger import Ledger
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import GroupCommit
from tests.logstore.ledgers import crash
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import Compression, SimpleRecord, build_batch


def batch_of(
    *values: bytes,
    timestamp: int = 1_000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    key: bytes | None = b"k",
    compression: Compression = Compression.NONE,
) -> bytearray:
    """Return a client's batch of these values."""
    return build_batch(
        [SimpleRecord(key, value, timestamp) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
        compression=compression,
    )


def delete_records(log: PartitionLog, before_offset: int) -> int:
    """Delete the records below `before_offset`; return the new start, which is not durable yet."""
    log.advance_start(log.deletable_before(before_offset))
    return log.log_start_offset


def expire(log: PartitionLog, start_offset: int) -> None:
    """Give up what lies below `start_offset`, as retention does, waiting for the disk."""
    log.roll_at(start_offset)
    log.advance_start(start_offset)


class SteppedPartition:
    """A `PartitionLog` whose syncs happen when told, over bytes that outlive it."""

    def __init__(self, config: LogConfig | None = None, *, segment_bytes: int = 2**30) -> None:
        self.config = config or LogConfig()
        self.now_ms = 1_000
        self.executor = SteppedExecutor()
        self.commit = GroupCommit(
            None, Durability.MEMORY, on_failure=_raise, executor=self.executor
        )
        self.ledger: Ledger = MemoryLedger(self.commit, segment_bytes=segment_bytes)
        self.log = self._open()

    def _open(self) -> PartitionLog:
        log = PartitionLog("topic", 0, self.ledger, self.config, steady_ms=lambda: self.now_ms)
        at_once(log.opening())
        return log

    def settle(self) -> None:
        """Everything appended becomes durable and visible."""
        self.executor.run()

    def restart(self) -> PartitionLog:
        """Stop cleanly and open again."""
        at_once(self.log.securing())
        self.log.close()
        self.log = self._open()
        return self.log

    def crash(self) -> PartitionLog:
        """Lose what is not durable, and open again."""
        assert isinstance(self.ledger, MemoryLedger)
        crash(self.ledger)
        self.executor.close()
        self.commit = GroupCommit(
            None, Durability.MEMORY, on_failure=_raise, executor=self.executor
        )
        self.ledger._group_commit = self.commit
        self.log = self._open()
        return self.log

    def append(
        self,
        *values: bytes,
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> Appended:
        """Append a client's batch, now."""
        batch = batch_of(
            *values,
            timestamp=self.now_ms,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
        )
        return self.log.append(self.log.check(batch, self.now_ms))

    def end(
        self, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0
    ) -> Appended:
        """Append a marker, now."""
        marker = TransactionMarker(producer_id, epoch, coordinator_epoch, commit)
        return self.log.append_marker(marker, self.now_ms)


def _raise(failure: StorageFailure) -> None:
    raise failure
