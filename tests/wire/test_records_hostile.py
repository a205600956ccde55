"""Bytes that mean harm: a WireError, or records, and never anything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import KafkaError, WireError
from wire.records import (
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    build_marker,
    crc_ok,
    iterate_batches,
    iterate_records,
    next_sequence,
    parse_marker,
    validate_batch,
    validate_records,
)
from wire.records.header import HEADER as LAYOUT
from wire.records.header import pack_batch
from wire.records.varint import encode_varint, read_varint, read_varlong

RECORDS = [
    SimpleRecord(b"key", b"value" * 20, 1_700_000_000_000 + delta, (("header", b"x"),))
    for delta in range(4)
]
BATCHES = [build_batch(RECORDS, compression=codec) for codec in Compression]
BATCHES.append(
    build_marker(
        base_offset=3,
        producer_id=4,
        producer_epoch=5,
        coordinator_epoch=6,
        commit=True,
        timestamp_ms=7,
    )
)
HEADER = BatchHeader.parse(BATCHES[0])


def examine(batch: bytes) -> None:
    """Do all that a broker ever does with bytes that a stranger gave it."""
    crc_ok(batch)
    with contextlib.suppress(KafkaError):
        validate_batch(batch)
    with contextlib.suppress(WireError):
        list(iterate_batches(batch))
    with contextlib.suppress(WireError):
        list(iterate_records(batch, 100_000))
    with contextlib.suppress(WireError):
        parse_marker(batch)
    with contextlib.suppress(KafkaError, WireError):
        validate_records(BatchHeader.parse(batch), batch, max_bytes=100_000)


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_a_wire_error(batch: bytes) -> None:
    examine(batch)


@given(st.binary(max_size=200), st.sampled_from(Compression), st.integers(-1, 300))
def test_any_bytes_after_a_header_are_records_or_a_wire_error(
    body: bytes, codec: Compression, record_count: int
) -> None:
    header = HEADER._replace(
        batch_length=49 + len(body), attributes=codec, record_count=record_count
    )
    examine(bytes(pack_batch(header, body)))


@given(
    batch=st.sampled_from(BATCHES),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 40),
)
def test_mutated_batches_are_records_or_a_wire_error(
    batch: bytes, edits: list[tuple[int, int]], cut: int
) -> None:
    mutated = bytearray(batch)
    for position, byte in edits:
        mutated[position % len(mutated)] = byte
    examine(bytes(mutated[: len(mutated) - cut]))
    header = BatchHeader._make(LAYOUT.unpack_from(mutated))
    body = mutated[61 : len(mutated) - cut]
    examine(bytes(pack_batch(header._replace(batch_length=49 + len(body)), body)))


def records_in(body: bytes, record_count: int = 1) -> bytearray:
    header = HEADER._replace(batch_length=49 + len(body), record_count=record_count)
    return pack_batch(header, body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "beyond the records"),
        (encode_varint(2**31 - 1), "a record of 2147483647 bytes"),
        (encode_varint(-1), "a record of -1 bytes"),
        (b"\xff" * 5, "more than 32 bits"),
        (encode_varint(6) + b"\0\0\0\x01\x01\0\0", "1 bytes after the last"),
        (encode_varint(5) + b"\0\0\0\x01", "a record of 5 bytes, 4 remain"),
        (encode_varint(7) + b"\0\0\0\x01\x01\0\0", "ends 1 before"),
        (encode_varint(6) + b"\0\0\0\x03\x01\0", "length -2"),
        (encode_varint(6) + b"\0\0\0\x40\x01\0", "a length of 32 bytes, 2 remain"),
        (encode_varint(6) + b"\0\0\0\x01\x40\0", "a length of 32 bytes, 1 remain"),
        (encode_varint(6) + b"\0\0\0\x01\x01\x02", "1 headers in 0 bytes"),
        (encode_varint(6) + b"\0\0\0\x01\x01\x01", "-1 headers"),
        (encode_varint(8) + b"\0\0\0\x01\x01\x02\x01\x01", "a header without a key"),
    ],
)
def test_each_lie_in_a_record_is_named(body: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        list(iterate_records(records_in(body)))


def test_a_count_of_billions_allocates_nothing() -> None:
    with pytest.raises(WireError, match="beyond the records"):
        list(iterate_records(records_in(b"\x0c\0\0\0\x01\x01\0", 2**31 - 1)))


def test_a_record_does_not_reach_into_the_next() -> None:
    first = b"\0\0\0" + encode_varint(4) + b"abcd" + b"\x01\0"
    body = encode_varint(len(first) - 3) + first
    with pytest.raises(WireError):
        list(iterate_records(records_in(body + body, 2)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_read_back(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varlong(encoded, 0) == (value, len(encoded))
    assert len(encoded) <= 10
    if -(2**31) <= value < 2**31:
        assert read_varint(encoded, 0) == (value, len(encoded))
        assert len(encoded) <= 5
    else:
        with pytest.raises(WireError, match="more than 32 bits"):
            read_varint(encoded, 0)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80" * 9, b"\x80" * 20, b"\xff" * 9 + b"\x7f"])
def test_varints_end_where_the_bytes_do(data: bytes) -> None:
    for read in (read_varint, read_varlong):
        with pytest.raises(WireError):
            read(data, 0)


@pytest.mark.parametrize(
    ("sequence", "increment", "following"),
    [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 2, 3, 1), (5, 0, 5)],
)
def test_sequences_wrap_after_the_largest_int32(
    sequence: int, increment: int, following: int
) -> None:
    assert next_sequence(sequence, increment) == following


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (b"\0\0\0", b"\0" * 6, "too short"),
        (b"\0\0\0\x01", b"\0" * 5, "too short"),
        (None, b"\0" * 6, "too short"),
        (b"\0\0\0\x02", b"\0" * 6, "type 2"),
        (b"\xff\xff\0\x01", b"\0" * 6, "versions -1 and 0"),
    ],
)
def test_a_control_batch_that_is_no_marker_is_refused(
    key: bytes | None, value: bytes, complaint: str
) -> None:
    batch = build_batch([SimpleRecord(key, value, 0)], is_control=True, is_transactional=True)
    with pytest.raises(WireError, match=complaint):
        parse_marker(batch)


def test_a_marker_of_a_later_version_is_read() -> None:
    batch = build_batch(
        [SimpleRecord(b"\0\x01\0\x01more", b"\0\x01\0\0\0\x09more", 0)],
        is_control=True,
        is_transactional=True,
    )
    assert parse_marker(batch) == (1, 9)
