"""Snapshots of a partition's state: a file of our own, `<end offset>.state`.

A snapshot spares recovery the headers below its offset. It is taken at the log's end, not at the
stable offset: one old open transaction must not make recovery long. It is written once that end is
durable, so it is never ahead of the log unless the disk lied. In case it did, the CRC of the last
batch ties the snapshot to its log.

    bytes 0-4   "MGNS"
          4-6   version               int16, 2
          6-10  CRC-32C               uint32, over bytes 10 to the end
         10-18  end offset            int64, exclusive: what the state accounts for
         18-22  last batch's CRC      uint32, 0: no batch
         22-30  last aborted marker   int64, its offset, -1: none; must be in the `.txnindex`
         30-34  producers             int32, then of each:
                  producer id int64, epoch int16, coordinator epoch int32, last timestamp int64,
                  last sequence int32, last heard of (ms) int64, last marker's offset int64,
                  batches int8, and of each batch: base sequence, last sequence int32; base offset,
                  last offset, max timestamp int64
                open transactions     int32, then of each:
                  producer id int64, epoch int16, first offset int64, started (ms) int64
                leader epochs         int32, then of each: epoch int32, start offset int64

Completed transactions whose markers are not durable have no place here: everything that recovery
finds is durable. Kafka's own file keeps one batch per producer: `snapshot_kafka`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from logstore.disk.barriers import TURN, Procedure, at_once
from logstore.disk.pieces import Piece, headed, whole
from logstore.disk.sealed import BODY_AT, BrokenSeal, Seal
from logstore.partition.leader_epochs import LeaderEpochs
from logstore.partition.producer_state import PACKED_BATCH_BYTES, ProducerState
from logstore.partition.state import PartitionState, StateView
from logstore.partition.transaction_buffer import OpenTransaction

SUFFIX = ".state"
#: A file of more parts is made in pieces: a piece of 2,000 producers takes a millisecond.
PARTS_OF_A_PIECE = 4000
_SEAL = Seal(b"MGNS", 2)
_HEAD = Struct(">qIqi")
_PRODUCER = Struct(">qhiqiqqb")
_COUNT = Struct(">i")
_OPEN = Struct(">qhqq")
_EPOCH = Struct(">iq")


class CorruptSnapshot(ValueError):
    """A snapshot is torn, of another format, or not of this log. An older one will do."""


class Snapshot(NamedTuple):
    """The contents of a `.state` file. `last_aborted_offset` must be found in the aborted index."""

    state: PartitionState
    last_aborted_offset: int


def encode_snapshot(state: PartitionState) -> bytes:
    """Return the `.state` file of a partition's state."""
    return whole(snapshot_pieces(state.view()))


def size_least(state: PartitionState) -> int:
    """Return how many bytes the `.state` file takes at least, counting one batch per producer."""
    return len(state.producers) * (_PRODUCER.size + PACKED_BATCH_BYTES)


def snapshot_pieces(view: StateView) -> Iterator[Piece]:
    """Yield the pieces of the `.state` file of a partition's state."""
    return headed(_SEAL.prefix, BODY_AT, _body(view))


def _body(view: StateView) -> Iterator[bytes]:
    pack = _PRODUCER.pack
    parts = [
        _HEAD.pack(
            view.end_offset, view.last_batch_crc, view.last_aborted_offset, len(view.producers)
        )
    ]
    for producer_id, producer in view.producers.items():
        if len(parts) > PARTS_OF_A_PIECE:
            yield b"".join(parts)
            parts.clear()
        parts.append(
            pack(
                producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_timestamp,
                producer.last_sequence,
                producer.seen_ms,
                producer.last_marker_offset,
                len(producer.batches) // PACKED_BATCH_BYTES,
            )
        )
        parts.append(producer.batches)
    parts.append(_COUNT.pack(len(view.open_transactions)))
    parts += [_OPEN.pack(*transaction) for transaction in view.open_transactions]
    parts.append(_COUNT.pack(len(view.leader_epochs)))
    parts += [_EPOCH.pack(*entry) for entry in view.leader_epochs]
    yield b"".join(parts)


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the contents of a `.state` file, the aborted index empty. Raises CorruptSnapshot."""
    return at_once(decoding_snapshot(data))


def decoding_snapshot(data: bytes) -> Procedure[Snapshot]:
    """As `decode_snapshot`, in turns."""
    try:
        _SEAL.check(data)
        return (yield from _decoding_body(data))
    except (BrokenSeal, StructError) as error:
        raise CorruptSnapshot(str(error)) from None


def _decoding_body(data: bytes) -> Procedure[Snapshot]:
    position = BODY_AT
    end_offset, last_batch_crc, last_aborted_offset, count = _HEAD.unpack_from(data, position)
    position += _HEAD.size
    state = PartitionState(end_offset)
    state.last_batch_crc = last_batch_crc
    for number in range(count):
        if number and 2 * number % PARTS_OF_A_PIECE == 0:
            yield TURN
        producer_id, epoch, coordinator_epoch, timestamp, sequence, seen_ms, marker, batches = (
            _PRODUCER.unpack_from(data, position)
        )
        position += _PRODUCER.size
        end = position + batches * PACKED_BATCH_BYTES
        state.producers[producer_id] = ProducerState(
            epoch, coordinator_epoch, timestamp, sequence, seen_ms, data[position:end], marker
        )
        position = end
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    end = position + count * _OPEN.size
    transactions = [OpenTransaction._make(each) for each in _OPEN.iter_unpack(data[position:end])]
    if len({each.producer_id for each in transactions}) < count:
        raise CorruptSnapshot(f"{count} open transactions, and two of one producer")
    state.transactions.restore(transactions)
    (count,) = _COUNT.unpack_from(data, end)
    position = end + _COUNT.size
    end = position + count * _EPOCH.size
    if end != len(data):
        raise CorruptSnapshot(f"{len(data)} bytes, and what it counts ends at {end}")
    state.leader_epochs = LeaderEpochs(
        (epoch, start_offset) for epoch, start_offset in _EPOCH.iter_unpack(data[position:end])
    )
    return Snapshot(state, last_aborted_offset)
