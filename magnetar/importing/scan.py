"""What an import must know of a partition's log: producer ids, epochs, open transactions, damage.

Reads every batch's header and checks every CRC, and reads the snapshots, which tell of producers
and epochs whose batches are gone. Decodes transaction markers, and records of
`__transaction_state`, alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from coordinator.producer_ids import PRODUCER_IDS_END
from coordinator.transactions.records import decode_key, decode_value
from logstore.directory.foreign_logs import used_by_snapshot
from logstore.partition.snapshot import SUFFIX
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from magnetar.importing.source import OnProgress
from magnetar.storage.segment_files import Batch, Damage, read_batches, segments
from magnetar.storage.topic_names import TRANSACTION_STATE
from wire.errors import WireError
from wire.records import iterate_records, parse_marker


@dataclass
class Scanned:
    """What the log of one partition holds."""

    last_producer_id: int = -1
    leader_epoch: int = -1
    coordinator_epoch: int = -1
    #: Producer id -> first offset of its transaction without a marker.
    open_transactions: dict[int, int] = field(default_factory=dict)
    #: Where the log is damaged, as `file:byte: reason`.
    damages: list[str] = field(default_factory=list)
    #: Whether the only damage is at the end of the last segment, as a killed broker leaves it.
    is_torn: bool = False
    #: Below this offset everything was read and is whole, except what compaction removed: the last
    #: segment's base offset, or the end of the last gap in that segment.
    whole_below: int = 0


def scan_partition(directory: Path, topic: str, on_progress: OnProgress) -> Scanned:
    """Read a partition's log; `on_progress` is called with the bytes of each file."""
    scanned = Scanned()
    paths = segments(directory)
    next_offset = 0
    for path in paths:
        scanned.whole_below = base_offset = int(path.stem)
        # Segments that overlap come from a copy of a running broker: a reader would get records
        # twice.
        if base_offset < next_offset:
            reason = f"offset {next_offset - 1} is in the previous segment too"
            scanned.damages.append(f"{path}:0: {reason}")
        next_offset = base_offset
        for item in read_batches(path):
            if isinstance(item, Damage):
                scanned.damages.append(f"{path}:{item.position}: {item.reason}")
                scanned.is_torn = path == paths[-1]
            else:
                if item.header.base_offset > next_offset and not scanned.damages:
                    scanned.whole_below = item.header.next_offset
                next_offset = item.header.next_offset
                try:
                    _fold(scanned, item, topic)
                except WireError as error:
                    scanned.damages.append(f"{path}:{item.position}: {error}")
        on_progress(path.stat().st_size)
    for path in directory.iterdir():
        if path.suffix in (SUFFIX, KAFKA_SUFFIX):
            used = used_by_snapshot(path.name, path.read_bytes(), PRODUCER_IDS_END)
            scanned.last_producer_id = max(scanned.last_producer_id, used.producer_id)
            scanned.coordinator_epoch = max(scanned.coordinator_epoch, used.epoch)
    return scanned


def _fold(scanned: Scanned, batch: Batch, topic: str) -> None:
    header = batch.header
    producer_id = header.producer_id
    # No coordinator hands out ids above that. If they counted, they would use up the ids below.
    if producer_id < PRODUCER_IDS_END:
        scanned.last_producer_id = max(scanned.last_producer_id, producer_id)
    scanned.leader_epoch = max(scanned.leader_epoch, header.partition_leader_epoch)
    if header.is_control:
        marker = parse_marker(batch.data)
        scanned.coordinator_epoch = max(scanned.coordinator_epoch, marker.coordinator_epoch)
        # Commit or abort alike: the marker ends what the producer had open here.
        scanned.open_transactions.pop(producer_id, None)
    elif header.is_transactional:
        scanned.open_transactions.setdefault(producer_id, header.base_offset)
    if topic == TRANSACTION_STATE:
        for record in iterate_records(batch.data):
            _fold_transaction(scanned, record.key, record.value)


def _fold_transaction(scanned: Scanned, key: bytes | None, value: bytes | None) -> None:
    """Account for the producer ids of a transactional id, which may have written nothing yet."""
    if key is None or value is None:
        return
    transactional_id = decode_key(key)
    if transactional_id is not None:
        txn = decode_value(transactional_id, value)
        scanned.last_producer_id = max(
            scanned.last_producer_id, txn.producer_id, txn.next_producer_id
        )
