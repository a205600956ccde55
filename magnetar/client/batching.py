"""Records on their way to a topic: the partition of each, and the batch.

A record with a key goes where Java's clients send it, so that a key's records stay together
whichever client writes: murmur2 of the key, masked positive, modulo the number of partitions,
those without a leader included.
Records without a key fill one batch of one partition after the other. Source: Kafka's
Utils.murmur2, BuiltInPartitioner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wire.records.record import RecordHeader

#: The size of a batch before compression: well below the 1 MB that brokers accept by default.
BATCH_BYTES_MAX = 512 << 10
#: An upper bound of a record's own fields: lengths, offset and timestamp deltas.
_RECORD_OVERHEAD_BYTES = 32

#: The constants of Kafka's murmur2. Another seed would be a valid hash, and would send a key to
#: another partition than Java's clients do.
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SHIFT = 24


class ProducerRecord(NamedTuple):
    """A record to send. `timestamp` is in ms; None: the time at which the record is sent."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: Sequence[RecordHeader] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes in a batch, at most, headers' lengths apart."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + _RECORD_OVERHEAD_BYTES


@dataclass
class Batch:
    """Records for one partition, in order."""

    partition: int
    records: list[ProducerRecord] = field(default_factory=list)
    size_bytes: int = 0


@dataclass
class Batcher:
    """Sorts records into batches. Records without a key go to `available` partitions in turn.

    `partition_count`: of all partitions of the topic, those without a leader too, since keys are
    hashed over all. `fixed` None: the key decides.
    """

    available: Sequence[int]
    partition_count: int
    fixed: int | None = None
    _turn: int = -1
    """Counts up to move records without a key to the next partition."""

    def batches(self, records: Iterable[ProducerRecord]) -> list[Batch]:
        """Return the records in batches. Within a partition their order is kept."""
        done: list[Batch] = []
        filling: dict[int, Batch] = {}
        # The partition changes with each call, or a slow input, with one record per call, would
        # fill a single partition.
        self._turn += 1
        for record in records:
            partition = self._choose(record)
            size_bytes = record.size_bytes
            batch = filling.get(partition)
            if batch is None or batch.size_bytes + size_bytes > BATCH_BYTES_MAX:
                # The full batch ends the turn of its partition: the record opens a batch in the
                # next one.
                if batch is not None and record.key is None and self.fixed is None:
                    self._turn += 1
                    partition = self._choose(record)
                batch = filling[partition] = Batch(partition)
                done.append(batch)
            batch.records.append(record)
            batch.size_bytes += size_bytes
        return done

    def _choose(self, record: ProducerRecord) -> int:
        if self.fixed is not None:
            return self.fixed
        if record.key is not None:
            return partition_for(record.key, self.partition_count)
        return self.available[self._turn % len(self.available)]


def rounds(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield the batches in rounds of at most one batch per partition, in order."""
    found: list[list[Batch]] = []
    counts: dict[int, int] = {}
    for batch in batches:
        number = counts.get(batch.partition, 0)
        counts[batch.partition] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(batch)
    yield from found


def partition_for(key: bytes, partition_count: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & _POSITIVE) % partition_count


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash."""
    length = len(data)
    # Python's integers do not wrap at 32 bits, so every product is cut by hand.
    value = (_SEED ^ length) & _WORD
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _WORD
        value = value * _MULTIPLIER & _WORD ^ word
    # Java mixes in the left bytes one by one, from the third to the first; little-endian is the
    # same.
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    value = (value ^ value >> 13) * _MULTIPLIER & _WORD
    return value ^ value >> 15
