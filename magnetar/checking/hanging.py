"""Transactions that are open in a partition and that no coordinator will end.

The rules are those of healing (`coordinator.transactions.healing`), which acts on them at the next
start. Memory: the last record of each transactional id, and the open transactions.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.transactions.healing import heal
from coordinator.transactions.metadata import (
    ProducerIdentity,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.records import decode_key, decode_value
from logstore.directory.data_directory import Key
from logstore.partition.transaction_buffer import OpenTransaction
from logstore.segments.batch_walk import WholeBatch
from logstore.segments.findings import Finding, Remedy, Severity
from wire.errors import WireError
from wire.records import iterate_records


class Hanging:
    """What coordinators know, and what partitions have open."""

    def __init__(self) -> None:
        self._known: dict[str, TransactionMetadata] = {}
        self._open: list[tuple[Key, OpenTransaction, str]] = []

    def on_batch(self, batch: WholeBatch) -> None:
        """Account for a batch of `__transaction_state`."""
        if batch.header.is_control or len(batch.data) < batch.header.size_bytes:
            return
        try:
            for record in iterate_records(batch.data):
                self._apply(record.key, record.value)
        except WireError:
            # A batch of whole bytes that are no records: it tells nothing of transactions.
            return

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        transactional_id = None if key is None else decode_key(key)
        if transactional_id is None:
            return
        if value is None:
            self._known.pop(transactional_id, None)
        else:
            self._known[transactional_id] = decode_value(transactional_id, value)

    def add_open(self, key: Key, transaction: OpenTransaction, path: str) -> None:
        """Account for a transaction that is open at the end of a partition, and where that lies."""
        self._open.append((key, transaction, path))

    def findings(self) -> Iterator[Finding]:
        """Yield what healing will end, once every partition was read."""
        by_producer = {}
        for txn in self._known.values():
            by_producer[txn.previous_producer_id] = txn
            by_producer[txn.producer_id] = txn
        for key, transaction, path in self._open:
            data = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
            verdict = heal(by_producer.get(data.producer_id), data, TopicPartition(*key))
            if verdict.remedy.is_act:
                yield Finding(
                    Severity.NOTE,
                    path,
                    f"the transaction of producer {data.producer_id}, epoch {data.producer_epoch},"
                    f" is open since offset {transaction.first_offset}, though {verdict.reason}:"
                    f" it will be {verdict.remedy.value}",
                    Remedy.NONE,
                )
