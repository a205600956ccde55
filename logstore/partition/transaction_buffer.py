"""The transaction buffer of one partition: what is open, what was aborted, what is stable.

Pulsar's name for what Kafka splits into ProducerStateManager and TransactionIndex. A fold over
batches and markers in offset order, so it is rebuilt from the log; data batches carry only
(producer id, epoch), hence everything here is keyed by the producer id, which has at most one
open transaction.

The stable offset is closed by default: it moves only in `stabilize`, in the same step as the high
watermark, and never past a transaction whose marker is not durable yet. Source: KIP-98; Pulsar's
maxReadPosition.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from logstore.segments.aborted_index import AbortedEntry, AbortedIndex
from wire.error_code import ErrorCode
from wire.errors import RefusedByLog
from wire.records import BatchHeader


class OpenTransaction(NamedTuple):
    """A transaction that has data here and no marker. `producer_epoch` is its first batch's."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    #: The max timestamp of its first batch, ms.
    started_ms: int


class _Completing(NamedTuple):
    """A transaction whose marker, at `last_offset`, is appended and not durable yet."""

    first_offset: int
    last_offset: int


class TransactionMarker(NamedTuple):
    """What a coordinator tells a partition: one producer's transaction has ended, by `commit` or
    by abort. Sources: KIP-98 (epochs fence producers and coordinators), KIP-890."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    #: From 2 on the marker's epoch is later than that of the data it ends.
    transaction_version: int = 1


class TransactionBuffer:
    """Open transactions by first offset, the aborted index, the stable offset."""

    __slots__ = ("_completing", "_open", "aborted", "last_stable_offset")

    def __init__(self) -> None:
        # Ordered by first offset, because transactions begin in offset order.
        self._open: OrderedDict[int, OpenTransaction] = OrderedDict()
        # Still open to readers. In the order of the markers.
        self._completing: deque[_Completing] = deque()
        self.aborted = AbortedIndex()
        #: The first offset that a read_committed fetch must not return; moved by `stabilize` only.
        self.last_stable_offset = 0

    @property
    def has_any(self) -> bool:
        """Whether any transaction is open or was aborted."""
        return bool(self._open or self._completing or self.aborted)

    def open_transaction(self, producer_id: int) -> OpenTransaction | None:
        """Return the producer's open transaction: data without a marker, durable or not."""
        return self._open.get(producer_id)

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer has data here without a marker."""
        return producer_id in self._open

    def check_plain(self, producer_id: int) -> None:
        """Raise INVALID_TXN_STATE if the producer may not write outside a transaction now."""
        if producer_id in self._open:
            raise RefusedByLog(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open, its batch is not transactional",
            )

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if the producer has data of another epoch open here.

        That data is of a transaction that no client can end, and one marker would end both. Healing
        ends it soon: the code has clients of every coordinator try again.
        """
        transaction = self._open.get(producer_id)
        if transaction is not None and transaction.producer_epoch != producer_epoch:
            raise RefusedByLog(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"producer {producer_id} has data of epoch {transaction.producer_epoch} open, "
                f"its batch has {producer_epoch}",
            )

    def is_of_earlier(self, marker: TransactionMarker) -> bool:
        """Whether what is open here was fenced before the transaction that `marker` ends began."""
        transaction = self._open.get(marker.producer_id)
        if transaction is None:
            return False
        epoch_after = marker.transaction_version >= 2
        return transaction.producer_epoch < marker.producer_epoch - epoch_after

    def open_transactions(self) -> Iterator[OpenTransaction]:
        """Yield all open transactions, the oldest first."""
        return iter(self._open.values())

    def open_producer_ids(self) -> Set[int]:
        """Return the producers that have an open transaction, so must not expire: a view."""
        return self._open.keys()

    def on_batch(self, header: BatchHeader) -> None:
        """Account for a transactional data batch at the log's end, live or replayed."""
        producer_id = header.producer_id
        if producer_id not in self._open:
            self._open[producer_id] = OpenTransaction(
                producer_id, header.producer_epoch, header.base_offset, header.max_timestamp
            )

    def on_marker(self, producer_id: int, offset: int, *, commit: bool) -> AbortedEntry | None:
        """Account for a marker at the log's end; return the entry of the transaction it aborted.

        None: the marker commits, or the producer had no open transaction here.
        """
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return None
        self._completing.append(_Completing(transaction.first_offset, offset))
        if commit:
            return None
        oldest = next(iter(self._open.values()), None)
        # What the marker allows once it is durable.
        stable = offset + 1 if oldest is None else oldest.first_offset
        entry = AbortedEntry(producer_id, transaction.first_offset, offset, stable)
        self.aborted.append(entry)
        return entry

    def stabilize(self, high_watermark: int) -> int:
        """Move the stable offset as far as a durable end of `high_watermark` allows; return it.

        It is the first offset of the oldest transaction that is open or whose marker is not
        durable, or `high_watermark` (exclusive bound) when there is none. Never moves back.
        """
        completing = self._completing
        while completing and completing[0].last_offset < high_watermark:
            completing.popleft()
        stable = high_watermark
        for completed in completing:
            if completed.first_offset < stable:
                stable = completed.first_offset
        if self._open:
            oldest = next(iter(self._open.values()))
            if oldest.first_offset < stable:
                stable = oldest.first_offset
        assert stable <= high_watermark
        if stable > self.last_stable_offset:
            self.last_stable_offset = stable
        return self.last_stable_offset

    def restore(self, transactions: Iterable[OpenTransaction]) -> None:
        """Take the open transactions of a snapshot, in any order, into an empty buffer."""
        assert not self._open and not self._completing
        for transaction in sorted(transactions, key=lambda one: one.first_offset):
            self._open[transaction.producer_id] = transaction
