"""The batches and records of a segment, or of a snapshot of the metadata log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from magnetar.dumping.entry import Entry
from magnetar.dumping.internal import DECODED, decode_internal, text
from magnetar.storage.segment_files import Batch, Damage, read_batches
from wire.errors import WireError
from wire.records import BatchHeader, Record, TimestampType, iterate_records, parse_marker


def dump_segment(
    path: Path, topic: str, *, with_records: bool, first_offset: int = 0
) -> Iterator[Entry]:
    """Yield the batches of a file from `first_offset` on, each followed by its records, if wanted.

    A damage is yielded at its place, and the batches behind it as far as they can be read.
    """
    for item in read_batches(path):
        if isinstance(item, Damage):
            yield Entry.damage(item.reason, item.position)
        # By the last offset: the batch that holds the one asked for may begin before it.
        elif item.header.last_offset >= first_offset:
            yield from _dump_batch(item, topic, with_records)


def _dump_batch(batch: Batch, topic: str, with_records: bool) -> Iterator[Entry]:
    shown = _shown(batch.header, batch.position)
    try:
        shown["codec"] = batch.header.compression.name.lower()
        if batch.header.is_control:
            shown |= _control(batch.data)
        # All at once, before the batch is shown: damage inside of it is then reported once, in its
        # place.
        records = list(iterate_records(batch.data)) if with_records else []
    except WireError as error:
        yield Entry("batch", shown)
        yield Entry.damage(str(error), batch.position)
        return
    yield Entry("batch", shown)
    # A control batch's record is the marker, which the batch's line has shown.
    if with_records and not batch.header.is_control:
        for record in records:
            yield Entry("record", _record(record, topic))


def _shown(header: BatchHeader, position: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size_bytes": header.size_bytes,
        "records": header.record_count,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.partition_leader_epoch,
        "crc": f"{header.crc:08x}",
    }
    if header.is_idempotent:
        shown["producer_id"] = header.producer_id
        shown["producer_epoch"] = header.producer_epoch
        shown["base_sequence"] = header.base_sequence
    for name, value in (
        ("transactional", header.is_transactional),
        ("control", header.is_control),
        ("log_append_time", header.timestamp_type is TimestampType.LOG_APPEND_TIME),
        # KIP-534 stores the horizon in place of the base timestamp, and says so with a bit.
        ("delete_horizon", header.base_timestamp if header.has_delete_horizon else False),
    ):
        if value is not False:
            shown[name] = value
    return shown


def _control(data: memoryview) -> dict[str, Any]:
    """Return the marker of a control batch; the metadata log has other kinds of them."""
    try:
        marker = parse_marker(data)
    except WireError:
        return {"marker": "other"}
    return {
        "marker": marker.control_type.name.lower(),
        "coordinator_epoch": marker.coordinator_epoch,
    }


def _record(record: Record, topic: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    if topic in DECODED:
        decoded = decode_internal(topic, record.key, record.value)
        # Bytes that no schema fits are still shown, as text: damage is what a dump is for.
        if decoded is not None:
            return {**shown, "decoded": decoded}
    shown["key"] = text(record.key)
    shown["value"] = text(record.value)
    if record.headers:
        shown["headers"] = [[name, text(value)] for name, value in record.headers]
    return shown
