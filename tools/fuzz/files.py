"""Files beside a log: snapshots, indexes, checkpoints, what a clean stop notes.

An input is the number of the kind in `_KINDS` (one byte), then the file. Some damaged files get the
checksum of their damage: no disk makes those, but another build or a restored copy may.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from random import Random
from struct import pack
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from logstore.directory.closed_logs import (
    CorruptClosedLogs,
    Stamps,
    decode_closed_logs,
    encode_closed_logs,
)
from logstore.disk.checkpoints import (
    CorruptCheckpoint,
    decode_leader_epochs,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_leader_epochs,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
)
from logstore.partition.leader_epochs import LeaderEpochs
from logstore.partition.producer_state import ProducerState, RememberedBatch, pack_batch
from logstore.partition.snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from logstore.partition.snapshot_kafka import decode_kafka_snapshot, encode_kafka_snapshot
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import ClosedLog
from logstore.partition.transaction_buffer import OpenTransaction
from logstore.segments.aborted_index import AbortedEntry, AbortedIndex, decode_entries
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.offset_index import OffsetIndex
from logstore.segments.time_index import TimeIndex
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge

_LOG_SIZE = 1 << 30
_EDGES = (-1, 0, 1, 5, 2**31 - 1, 2**63 - 1)


class _Kind(NamedTuple):
    """One kind of file."""

    make: Callable[[Random], bytes]
    judge: Callable[[bytes], None]
    #: Where the checksum lies, and from where on it covers; None: the file has none.
    crc_at: int | None = None


def _ascending(random: Random, count: int, step_max: int) -> list[int]:
    numbers, last = [], random.choice((0, 1, 100))
    for _ in range(count):
        last += random.randrange(1, step_max)
        numbers.append(last)
    return numbers


# Snapshots.


def _state(random: Random) -> PartitionState:
    state = PartitionState(random.randrange(10_000))
    state.last_batch_crc = random.getrandbits(32)
    for producer_id in range(random.randrange(5)):
        batches = b"".join(
            pack_batch(RememberedBatch(sequence, sequence, sequence, sequence, 5))
            for sequence in range(random.randrange(1, 6))
        )
        state.producers[producer_id] = ProducerState(
            random.randrange(5), 0, 5, 4, 5, batches, random.choice((-1, 9))
        )
    state.transactions.restore(
        OpenTransaction(producer_id, 0, 3 + producer_id, 5)
        for producer_id in range(random.randrange(3))
    )
    epochs = _ascending(random, random.randrange(4), 3)
    state.leader_epochs = LeaderEpochs(zip(epochs, epochs, strict=True))
    return state


def _judge_snapshot(data: bytes) -> None:
    with suppress(CorruptSnapshot):
        snapshot = decode_snapshot(data)
        again = decode_snapshot(encode_snapshot(snapshot.state))
        judge(again.state == snapshot.state, "a snapshot that was read is written as the same")


def _judge_kafka_snapshot(data: bytes) -> None:
    with suppress(CorruptSnapshot):
        state = decode_kafka_snapshot(data, 100, 5)
        again = decode_kafka_snapshot(encode_kafka_snapshot(state), 100, 5)
        judge(set(again.producers) == set(state.producers), "a snapshot keeps its producers")


# Indexes.


def _offset_index(random: Random) -> bytes:
    count = random.randrange(8)
    pairs = zip(_ascending(random, count, 50), _ascending(random, count, 5000), strict=True)
    return b"".join(pack(">ii", *pair) for pair in pairs) + bytes(random.choice((0, 8, 16)))


def _judge_offset_index(data: bytes) -> None:
    index = OffsetIndex.decode(7, data, _LOG_SIZE)
    again = OffsetIndex.decode(7, index.encode(), _LOG_SIZE)
    judge(again.encode() == index.encode(), "an offset index is written as it was read")
    columns = array("i", index.encode())
    columns.byteswap()
    offsets, positions = columns[0::2], columns[1::2]
    judge(list(offsets) == sorted(set(offsets)), "offsets of an index ascend")
    for edge in (*_EDGES, *offsets):
        at = index.lookup(edge)
        judge(at == 0 or at in positions, "a lookup returns a batch of the index")
        index.boundary(edge, edge)
    index.truncate(20)


def _time_index(random: Random) -> bytes:
    count = random.randrange(8)
    pairs = zip(_ascending(random, count, 50), _ascending(random, count, 50), strict=True)
    return b"".join(pack(">qi", *pair) for pair in pairs) + bytes(random.choice((0, 12, 24)))


def _judge_time_index(data: bytes) -> None:
    index = TimeIndex.decode(7, data)
    judge(
        TimeIndex.decode(7, index.encode()).encode() == index.encode(),
        "a time index is written as it was read",
    )
    found = [index.lookup(edge) for edge in sorted(_EDGES)]
    judge(found == sorted(found), "a later time is not found before an earlier one")
    for edge in _EDGES:
        index.largest_until(edge)
    index.maybe_append(2**62, 2**20)
    index.truncate(20)


def _aborted(random: Random) -> bytes:
    lasts = _ascending(random, random.choice((0, 1, 3, 200)), 9)
    return b"".join(
        AbortedEntry(random.randrange(4), random.randrange(last), last, last + 1).encode()
        for last in lasts
    )


def _judge_aborted(data: bytes) -> None:
    entries, is_whole = decode_entries(data)
    index = AbortedIndex(entries)
    judge(list(index) == entries, "an index of aborted transactions keeps its entries")
    again = b"".join(entry.encode() for entry in entries)
    judge(data.startswith(again), "entries are read as they stand")
    judge(not is_whole or again == data, "a whole index is read whole")
    stable = [entry.last_stable_offset for entry in entries]
    if stable == sorted(stable):
        _judge_overlapping(index, entries)
    index.prune(50)
    index.truncate(100)


def _judge_overlapping(index: AbortedIndex, entries: list[AbortedEntry]) -> None:
    for first in (0, 50, 2**62):
        end = first + 40
        # The definition, one by one, up to the stable offset at which nothing was open any more.
        wanted = set()
        for entry in entries:
            if entry.last_offset < first:
                continue
            if entry.first_offset < end:
                wanted.add((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= end:
                break
        found = set(map(tuple, index.overlapping(first, end)))
        judge(wanted <= found, "what overlaps a fetch is told")


# Texts.


def _leader_epochs(random: Random) -> bytes:
    numbers = _ascending(random, random.randrange(5), 9)
    return encode_leader_epochs(list(zip(numbers, numbers, strict=True)))


def _judge_leader_epochs(data: bytes) -> None:
    with suppress(CorruptCheckpoint):
        entries = decode_leader_epochs(data)
        judge(decode_leader_epochs(encode_leader_epochs(entries)) == entries, "epochs are kept")
        LeaderEpochs(entries).end_offset_for(3, 100)


def _offsets(random: Random) -> bytes:
    return encode_offsets({(f"t{n}", n): random.choice(_EDGES) for n in range(random.randrange(5))})


def _judge_offsets(data: bytes) -> None:
    with suppress(CorruptCheckpoint):
        offsets = decode_offsets(data)
        if not any(len(topic.split()) != 1 for topic, _ in offsets):
            judge(decode_offsets(encode_offsets(offsets)) == offsets, "offsets are kept")


def _metadata(random: Random) -> bytes:
    return encode_partition_metadata(UUID(int=random.getrandbits(128)))


def _judge_metadata(data: bytes) -> None:
    with suppress(CorruptCheckpoint):
        topic_id = decode_partition_metadata(data)
        judge(decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id, "the id")


def _properties(random: Random) -> bytes:
    return encode_properties({"version": "1", "cluster.id": "x" * random.randrange(30)})


def _closed_logs(random: Random) -> bytes:
    def log(number: int) -> tuple[tuple[str, int], Stamps, ClosedLog]:
        offsets = _ascending(random, 1 + random.randrange(3), 9)
        segments = ClosedSegments([(offset, 100) for offset in offsets], 99, 5, 7)
        topic_id = random.choice((None, UUID(int=9)))
        state = encode_snapshot(_state(random))
        return ("t", number), Stamps(1, 2), ClosedLog(topic_id, segments, offsets, [], state)

    return encode_closed_logs(map(log, range(random.randrange(4))))


def _judge_closed_logs(data: bytes) -> None:
    with suppress(CorruptClosedLogs):
        logs = decode_closed_logs(data)
        again = encode_closed_logs((key, *each) for key, each in logs.items())
        judge(decode_closed_logs(again) == logs, "what a clean stop noted is kept")


_KINDS = (
    _Kind(lambda random: encode_snapshot(_state(random)), _judge_snapshot, 6),
    _Kind(lambda random: encode_kafka_snapshot(_state(random)), _judge_kafka_snapshot, 2),
    _Kind(_offset_index, _judge_offset_index),
    _Kind(_time_index, _judge_time_index),
    _Kind(_aborted, _judge_aborted),
    _Kind(_leader_epochs, _judge_leader_epochs),
    _Kind(_offsets, _judge_offsets),
    _Kind(_metadata, _judge_metadata),
    _Kind(_properties, lambda data: None if decode_properties(data) else None),
    _Kind(_closed_logs, _judge_closed_logs, 6),
)


def _generate(random: Random) -> bytes:
    number = random.randrange(len(_KINDS))
    kind = _KINDS[number]
    data = kind.make(random)
    if random.random() < 0.8:
        data = mutated(random, data)
        if kind.crc_at is not None and random.random() < 0.7:
            body_at = kind.crc_at + 4
            head = data[: kind.crc_at] if len(data) >= body_at else bytes(kind.crc_at)
            data = head + pack(">I", crc32c(data[body_at:])) + data[body_at:]
    return bytes((number,)) + data


def _run(given: bytes) -> None:
    if given:
        _KINDS[given[0] % len(_KINDS)].judge(given[1:])


TARGET = Target("files", _generate, _run)
