"""Record batches: what a producer may send, and what it may not."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from wire.errors import KafkaError, WireError
from wire.records import (
    BatchHeader,
    Compression,
    Record,
    RecordRules,
    SimpleRecord,
    build_batch,
    build_marker,
    crc_ok,
    iterate_batches,
    iterate_records,
    parse_marker,
    validate_batch,
    validate_records,
)
from wire.records.header import BATCH_OVERHEAD, HEADER, pack_batch

_INFLATED_BYTES_MAX = 1_000_000
_EDGES = (-(2**63), -(2**31), -2, -1, 0, 1, 2**31 - 1, 2**63 - 1)


def some_batch(random: Random) -> bytes:
    """Return a batch: mostly a good one, else of another header, another body, or damaged."""
    batch = _good(random)
    kind = random.random()
    if kind < 0.6:
        return batch
    if kind < 0.75:
        return _reheaded(random, batch)
    if kind < 0.9:
        # The CRC is right: the damage is the client's own.
        body = mutated(random, batch[BATCH_OVERHEAD:])
        header = BatchHeader.parse(batch)
        return bytes(pack_batch(header._replace(batch_length=49 + len(body)), body))
    if kind < 0.95:
        return batch + _good(random)
    return mutated(random, batch)


def _good(random: Random) -> bytes:
    timestamp = random.choice((0, 1_700_000_000_000, 1_764_000_000_000))
    records = [_record(random, timestamp) for _ in range(random.choice((1, 1, 2, 3, 70, 200)))]
    if random.random() < 0.05:
        return bytes(
            build_marker(
                base_offset=0,
                producer_id=random.randrange(3),
                producer_epoch=0,
                coordinator_epoch=0,
                commit=random.random() < 0.5,
                timestamp_ms=timestamp,
            )
        )
    has_producer = random.random() < 0.5
    return bytes(
        build_batch(
            records,
            compression=random.choice(tuple(Compression)),
            producer_id=random.randrange(4) if has_producer else -1,
            producer_epoch=random.randrange(3) if has_producer else -1,
            base_sequence=random.choice((0, 0, 0, 1, 2**31 - 2)) if has_producer else -1,
            is_transactional=has_producer and random.random() < 0.5,
        )
    )


def _record(random: Random, timestamp: int) -> SimpleRecord:
    key = random.choice((None, b"", b"key", random.randbytes(random.randrange(80))))
    value = random.choice((None, b"", b"value", b"v" * random.randrange(300)))
    headers = tuple(("h", None) for _ in range(random.choice((0, 0, 0, 1, 3))))
    return SimpleRecord(key, value, timestamp + random.randrange(3), headers)


def _reheaded(random: Random, batch: bytes) -> bytes:
    """Return the batch with another value in one field of its header, and the CRC of that."""
    header = BatchHeader.parse(batch)
    name = random.choice([name for name in header._fields if name not in ("crc", "magic")])
    value = random.choice((*_EDGES, random.randrange(-10, 300)))
    with suppress(Exception):  # the value does not fit into the field
        return bytes(pack_batch(header._replace(**{name: value}), batch[BATCH_OVERHEAD:]))
    return batch


def _run(batch: bytes) -> None:
    with suppress(WireError):
        list(iterate_batches(batch))
    with suppress(WireError):
        parse_marker(batch)
    try:
        header = validate_batch(batch)
    except KafkaError:
        header = None
    if len(batch) < HEADER.size:
        judge(header is None, "bytes too short for a header are no batch")
        return
    records = None
    with suppress(WireError):
        records = list(iterate_records(batch, _INFLATED_BYTES_MAX))
    if header is None:
        with suppress(KafkaError, WireError):
            validate_records(BatchHeader.parse(batch), batch, max_bytes=_INFLATED_BYTES_MAX)
        return
    judge(crc_ok(batch), "a batch that is taken has the CRC of its bytes")
    try:
        validate_records(header, batch, RecordRules(), _INFLATED_BYTES_MAX)
    except (KafkaError, WireError):
        _judge_refused(records)
        return
    judge(records is not None, "records that are taken can be read")
    assert records is not None
    judge(
        [record.offset for record in records] == list(range(header.record_count)),
        "records that are taken have an offset each",
    )


def _judge_refused(records: list[Record] | None) -> None:
    """Reading forgives gaps between offsets and bytes behind a stream; the check does not."""
    if records is not None:
        offsets = [record.offset for record in records]
        judge(
            offsets != list(range(len(offsets))) or not offsets,
            "records that can be read, in order, are taken",
        )


TARGET = Target("batches", some_batch, _run)
