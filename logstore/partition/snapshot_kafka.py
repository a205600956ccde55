"""Kafka's snapshot of a partition's producers: `<end offset>.snapshot`, for Kafka and its tools.

The file keeps one batch per producer, so recovery prefers our own. It reads this one only where
there is none of ours: where Kafka wrote the directory.

    bytes 0-2   version    int16, 1
          2-6   CRC-32C    uint32, over bytes 6 to the end
          6-10  producers  int32, then of each 46 bytes:
                  producer id int64, epoch int16, last sequence int32, last offset int64 (-1: no
                  batch), last offset delta int32, last timestamp int64, coordinator epoch int32,
                  first offset of the open transaction int64 (-1: none)

Source: Kafka's ProducerStateManager.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from logstore.disk.pieces import Piece, headed, whole
from logstore.partition.producer_state import (
    PACKED_BATCH,
    PACKED_BATCH_BYTES,
    ProducerState,
    RememberedBatch,
    pack_batch,
)
from logstore.partition.snapshot import PARTS_OF_A_PIECE, CorruptSnapshot
from logstore.partition.state import PartitionState, StateView
from logstore.partition.transaction_buffer import OpenTransaction
from wire.records import next_sequence
from wire.records.header import NO_SEQUENCE

SUFFIX = ".snapshot"
_VERSION = 1
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_NONE = -1
_NO_BATCH = RememberedBatch(NO_SEQUENCE, NO_SEQUENCE, _NONE, _NONE, _NONE)


def encode_kafka_snapshot(state: PartitionState) -> bytes:
    """Return the `.snapshot` file of a partition's state."""
    return whole(kafka_snapshot_pieces(state.view()))


def kafka_snapshot_pieces(view: StateView) -> Iterator[Piece]:
    """Yield the pieces of the `.snapshot` file of a partition's state."""
    return headed(partial(_PREFIX.pack, _VERSION), _PREFIX.size, _body(view))


def _body(view: StateView) -> Iterator[bytes]:
    # Without a function's call for each producer, of which there may be many.
    pack, unpack = _ENTRY.pack, PACKED_BATCH.unpack_from
    open_from = {one.producer_id: one.first_offset for one in view.open_transactions}
    entries = [_COUNT.pack(len(view.producers))]
    for producer_id, producer in view.producers.items():
        if 2 * len(entries) > PARTS_OF_A_PIECE:
            yield b"".join(entries)
            entries.clear()
        batches = producer.batches
        newest = unpack(batches, len(batches) - PACKED_BATCH_BYTES) if batches else _NO_BATCH
        _, sequence, base_offset, offset, _ = newest
        entries.append(
            pack(
                producer_id,
                producer.producer_epoch,
                sequence,
                offset,
                offset - base_offset,
                producer.last_timestamp,
                producer.coordinator_epoch,
                open_from.get(producer_id, _NONE),
            )
        )
    yield b"".join(entries)


def decode_kafka_snapshot(data: bytes, end_offset: int, steady_ms: int) -> PartitionState:
    """Return the state in a `.snapshot` file taken at `end_offset`, its aborted index still empty.

    Raises CorruptSnapshot. Producers count as heard of at `steady_ms`.
    """
    try:
        version, crc = _PREFIX.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    except StructError as error:
        raise CorruptSnapshot(f"it is too short: {error}") from None
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise CorruptSnapshot("its CRC is wrong")
    body = data[_PREFIX.size + _COUNT.size :]
    if len(body) != count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} producers in {len(body)} bytes")
    state = PartitionState(end_offset)
    transactions = []
    for fields in _ENTRY.iter_unpack(body):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = fields
        batches = b""
        if offset >= 0:
            base_sequence = NO_SEQUENCE if sequence < 0 else next_sequence(sequence, -delta)
            batches = pack_batch(
                RememberedBatch(base_sequence, sequence, offset - delta, offset, timestamp)
            )
        state.producers[producer_id] = ProducerState(
            epoch, coordinator_epoch, timestamp, sequence, steady_ms, batches
        )
        if first >= 0:
            transactions.append(OpenTransaction(producer_id, epoch, first, timestamp))
    state.transactions.restore(transactions)
    return state
