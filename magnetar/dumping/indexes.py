"""The files beside a segment: offset index, time index, aborted index, producers' snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from logstore.partition.snapshot import CorruptSnapshot, decode_snapshot
from logstore.partition.snapshot_kafka import decode_kafka_snapshot
from logstore.segments.aborted_index import ENTRY_SIZE, decode_entries
from magnetar.dumping.entry import Entry
from magnetar.storage.segment_files import Batch, read_batches

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


def dump_offset_index(path: Path) -> Iterator[Entry]:
    """Yield the entries, and a damage for each that does not lead to its batch."""
    data, base_offset = _written(path, _OFFSET_ENTRY), int(path.stem)
    starts = _batch_starts(path.with_suffix(".log"))
    last = (-1, -1)
    for number, (relative, position) in enumerate(_whole(_OFFSET_ENTRY, data)):
        entry = base_offset + relative, position
        yield Entry("index", {"offset": entry[0], "position": position})
        # An equal entry is wrong as well: a binary search may find either of two.
        if entry <= last or position <= last[1]:
            yield Entry.damage("it does not ascend", number * _OFFSET_ENTRY.size)
        # The entry names the batch's last offset, as Kafka's index does.
        elif starts is not None and starts.get(position) != entry[0]:
            there = starts.get(position)
            reason = (
                "no batch begins at that position"
                if there is None
                else f"the batch at that position ends with offset {there}"
            )
            yield Entry.damage(reason, number * _OFFSET_ENTRY.size)
        last = entry
    yield from _rest(_OFFSET_ENTRY, data)


def dump_time_index(path: Path) -> Iterator[Entry]:
    """Yield the entries, and a damage where they do not ascend."""
    data, base_offset = _written(path, _TIME_ENTRY), int(path.stem)
    last = (-1, -1)
    for number, (timestamp, relative) in enumerate(_whole(_TIME_ENTRY, data)):
        yield Entry("timeindex", {"timestamp": timestamp, "offset": base_offset + relative})
        if timestamp <= last[0] or relative < last[1]:
            yield Entry.damage("it does not ascend", number * _TIME_ENTRY.size)
        last = timestamp, relative
    yield from _rest(_TIME_ENTRY, data)


def dump_aborted_index(path: Path) -> Iterator[Entry]:
    """Yield the aborted transactions whose markers lie in the segment."""
    entries, is_whole = decode_entries(path.read_bytes())
    for entry in entries:
        yield Entry("aborted", entry._asdict())
    if not is_whole:
        yield Entry.damage("no further entry is valid", len(entries) * ENTRY_SIZE)


def dump_kafka_snapshot(path: Path) -> Iterator[Entry]:
    """Yield the producers in a `.snapshot`, the format of Kafka."""
    try:
        state = decode_kafka_snapshot(path.read_bytes(), int(path.stem), -1)
    except CorruptSnapshot as error:
        yield Entry.damage(str(error))
        return
    for producer_id, producer in state.producers.items():
        batch = producer.last_batch()
        transaction = state.transactions.open_transaction(producer_id)
        yield Entry(
            "producer",
            {
                "producer_id": producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_offset": None if batch is None else batch.last_offset,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "open_since": None if transaction is None else transaction.first_offset,
            },
        )


def dump_snapshot(path: Path) -> Iterator[Entry]:
    """Yield the contents of a `.state`, magnetar's own snapshot."""
    try:
        snapshot = decode_snapshot(path.read_bytes())
    except CorruptSnapshot as error:
        yield Entry.damage(str(error))
        return
    state = snapshot.state
    yield Entry(
        "snapshot",
        {"end_offset": state.end_offset, "last_aborted_marker": snapshot.last_aborted_offset},
    )
    for producer_id, producer in state.producers.items():
        yield Entry(
            "producer",
            {
                "producer_id": producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "batches": [batch._asdict() for batch in producer.remembered()],
            },
        )
    for transaction in state.transactions.open_transactions():
        yield Entry("open", transaction._asdict())
    for epoch, start_offset in state.leader_epochs.entries:
        yield Entry("leader_epoch", {"epoch": epoch, "start_offset": start_offset})


def _written(path: Path, entry: Struct) -> bytes:
    """Return the file without its preallocated zeros, which Kafka cuts when it closes a segment."""
    data = path.read_bytes()
    written = len(data.rstrip(b"\0"))
    # Rounded up: the last entry may itself end with zeros.
    return data[: -(-written // entry.size) * entry.size]


def _whole(entry: Struct, data: bytes) -> Iterator[tuple[int, int]]:
    yield from entry.iter_unpack(data[: len(data) - len(data) % entry.size])


def _rest(entry: Struct, data: bytes) -> Iterator[Entry]:
    left = len(data) % entry.size
    if left:
        yield Entry.damage(f"{left} bytes where an entry has {entry.size}", len(data) - left)


def _batch_starts(log: Path) -> dict[int, int] | None:
    """Return position -> last offset of the segment's batches, None without a segment."""
    if not log.exists():
        return None
    return {
        item.position: item.header.last_offset
        for item in read_batches(log)
        if isinstance(item, Batch)
    }
