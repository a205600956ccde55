"""Everything that a partition knows from its batches: one fold, the same live and on replay.

Owns the order in which a batch is accounted for. Apart from the log, so that a test can assert that
the live state always equals the state replayed from headers.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.partition.leader_epochs import LeaderEpochs
from logstore.partition.producer_state import Producers, ProducersView
from logstore.partition.transaction_buffer import OpenTransaction, TransactionBuffer
from logstore.segments.aborted_index import AbortedEntry
from wire.records import BatchHeader
from wire.records.header import ATTRIBUTE_TRANSACTIONAL


class StateView(NamedTuple):
    """What a snapshot tells of a state: as the state was when the view was made."""

    end_offset: int
    last_batch_crc: int
    last_aborted_offset: int
    producers: ProducersView
    open_transactions: list[OpenTransaction]
    #: (epoch, start offset), ascending.
    leader_epochs: list[tuple[int, int]]


class PartitionState:
    """Producers, transactions and leader epochs as of `end_offset`."""

    __slots__ = ("end_offset", "last_batch_crc", "leader_epochs", "producers", "transactions")

    def __init__(self, end_offset: int = 0) -> None:
        self.producers = Producers()
        self.transactions = TransactionBuffer()
        self.leader_epochs = LeaderEpochs()
        #: The state accounts for every batch below.
        self.end_offset = end_offset
        #: The CRC of the last batch accounted for: ties a snapshot to the log it was taken of.
        self.last_batch_crc = 0

    def view(self) -> StateView:
        """Return what a snapshot is to tell, whatever is appended meanwhile."""
        return StateView(
            self.end_offset,
            self.last_batch_crc,
            self.transactions.aborted.last_offset,
            self.producers.view(),
            list(self.transactions.open_transactions()),
            list(self.leader_epochs.entries),
        )

    def on_batch(self, header: BatchHeader, steady_ms: int) -> None:
        """Account for a data batch at the log's end. Feed batches in offset order."""
        if header.producer_id >= 0:
            self.producers.on_batch(header, steady_ms)
            if header.attributes & ATTRIBUTE_TRANSACTIONAL:
                self.transactions.on_batch(header)
        # As `on_other`, without a call: every batch passes here.
        base_offset, leader_epoch = header.base_offset, header.partition_leader_epoch
        assert base_offset >= self.end_offset, "batches come in the order of their offsets"
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.on_batch(leader_epoch, base_offset)
        self.end_offset = base_offset + header.last_offset_delta + 1
        self.last_batch_crc = header.crc

    def on_marker(
        self, header: BatchHeader, coordinator_epoch: int, steady_ms: int, *, commit: bool
    ) -> AbortedEntry | None:
        """Account for a marker at the log's end; return as `TransactionBuffer.on_marker`."""
        producer_id = header.producer_id
        self.producers.on_marker(
            producer_id,
            header.producer_epoch,
            coordinator_epoch,
            header.max_timestamp,
            steady_ms,
            header.base_offset,
        )
        aborted = self.transactions.on_marker(producer_id, header.base_offset, commit=commit)
        self.on_other(header)
        return aborted

    def on_other(self, header: BatchHeader) -> None:
        """Account for what any batch tells; of one that compaction has emptied there is no more."""
        assert header.base_offset >= self.end_offset, "batches come in the order of their offsets"
        epochs = self.leader_epochs
        if header.partition_leader_epoch > epochs.latest:
            epochs.on_batch(header.partition_leader_epoch, header.base_offset)
        self.end_offset = header.base_offset + header.last_offset_delta + 1
        self.last_batch_crc = header.crc

    def __eq__(self, other: object) -> bool:
        """Compare what the log determines: not when producers were last heard of, nor what is
        durable."""
        if not isinstance(other, PartitionState):
            return NotImplemented
        return self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # mutable: not to be a key

    def _key(self) -> tuple[object, ...]:
        return (
            self.end_offset,
            dict(self.producers),
            list(self.transactions.open_transactions()),
            self.transactions.aborted,
            self.leader_epochs,
            self.last_batch_crc,
        )

    def __repr__(self) -> str:
        return f"PartitionState{self._key()}"
