"""Whatever is built is read back; other clients' builders and readers agree, byte for byte."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soak import SOAK
from wire.records import (
    BatchHeader,
    Compression,
    ControlType,
    Marker,
    Record,
    SimpleRecord,
    build_batch,
    build_marker,
    crc_ok,
    iterate_records,
    parse_marker,
    place,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of the standard library.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

CODECS = list(Compression)
int16s = st.integers(0, 2**15 - 1)
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**63 - 1)
timestamps = st.integers(-1, 2**50)
data = st.none() | st.binary(max_size=300)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
headers = st.lists(st.tuples(texts, data), max_size=3)


def lists_of_records(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[SimpleRecord]]:
    return st.lists(
        st.builds(SimpleRecord, data, data, timestamps, headers), min_size=1, max_size=8
    )


records = lists_of_records(timestamps)
#: aiokafka's builder cannot tell a first timestamp of -1 from none yet.
timed_records = lists_of_records(st.integers(0, 2**50))
few = settings(max_examples=30 * SOAK)


def as_read(simple: list[SimpleRecord], base_offset: int) -> list[Record]:
    return [
        Record(
            base_offset + delta, record.timestamp, record.key, record.value, tuple(record.headers)
        )
        for delta, record in enumerate(simple)
    ]


@given(simple=records, codec=st.sampled_from(CODECS), base_offset=int64s.map(lambda o: o // 2))
def test_records_are_read_back(
    simple: list[SimpleRecord], codec: Compression, base_offset: int
) -> None:
    batch = build_batch(simple, base_offset=base_offset, compression=codec)
    header = BatchHeader.parse(batch)
    assert header.size_bytes == len(batch)
    assert header.record_count == header.last_offset_delta + 1 == len(simple)
    assert header.max_timestamp == max(record.timestamp for record in simple)
    assert crc_ok(batch)
    assert list(iterate_records(batch)) == as_read(simple, base_offset)


@given(
    producer_id=int64s,
    producer_epoch=int16s,
    base_sequence=int32s,
    transactional=st.booleans(),
    leader_epoch=int32s,
)
def test_header_fields_are_read_back(
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
    leader_epoch: int,
) -> None:
    batch = build_batch(
        [SimpleRecord(b"k", b"v", 1), SimpleRecord(b"k", b"v", 2)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=transactional,
    )
    header = BatchHeader.parse(batch)
    assert header.producer_id == producer_id and header.is_idempotent
    assert header.producer_epoch == producer_epoch
    assert header.base_sequence == base_sequence
    assert header.last_sequence == (base_sequence + 1) % 2**31
    assert header.is_transactional is transactional
    assert not header.is_control and not header.has_delete_horizon
    assert header.partition_leader_epoch == leader_epoch


@given(base_offset=int64s, leader_epoch=int32s)
def test_placing_a_batch_leaves_its_crc_right(base_offset: int, leader_epoch: int) -> None:
    batch = build_batch([SimpleRecord(b"k", b"v", 1)])
    place(memoryview(batch), base_offset, leader_epoch)
    header = BatchHeader.parse(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, leader_epoch)
    assert crc_ok(batch)


@given(
    base_offset=int64s,
    producer_id=int64s,
    producer_epoch=int16s,
    coordinator_epoch=int32s,
    commit=st.booleans(),
    timestamp_ms=int64s,
)
def test_markers_are_read_back(coordinator_epoch: int, commit: bool, **fields: int) -> None:
    batch = build_marker(coordinator_epoch=coordinator_epoch, commit=commit, **fields)
    header = BatchHeader.parse(batch)
    assert crc_ok(batch)
    assert header.is_control and header.is_transactional
    assert header.base_offset == header.last_offset == fields["base_offset"]
    assert (header.producer_id, header.producer_epoch) == (
        fields["producer_id"],
        fields["producer_epoch"],
    )
    assert parse_marker(batch) == Marker(ControlType(commit), coordinator_epoch)


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


def built_by(builder_class: type, codec: Compression, simple: list[SimpleRecord]) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=4000,
        producer_epoch=2,
        base_sequence=17,
        batch_size=10**9,
    )
    for delta, record in enumerate(simple):
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@pytest.mark.parametrize("builder_class", [KafkaPythonBuilder, AiokafkaBuilder])
@few
@given(simple=timed_records)
def test_other_builders_write_the_same_bytes(
    builder_class: type, simple: list[SimpleRecord]
) -> None:
    theirs = built_by(builder_class, Compression.NONE, simple)
    ours = build_batch(
        simple,
        leader_epoch=BatchHeader.parse(theirs).partition_leader_epoch,
        producer_id=4000,
        producer_epoch=2,
        base_sequence=17,
        is_transactional=True,
    )
    assert ours.hex() == theirs.hex()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@few
@given(simple=timed_records)
def test_what_aiokafka_compresses_is_read(codec: Compression, simple: list[SimpleRecord]) -> None:
    theirs = built_by(AiokafkaBuilder, codec, simple)
    assert crc_ok(theirs)
    assert list(iterate_records(theirs)) == as_read(simple, 0)


def read_by(batch_class: type, batch: bytes) -> list[Any]:
    return [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in batch_class(batch)
    ]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@few
@given(simple=records)
def test_aiokafka_reads_what_is_compressed(codec: Compression, simple: list[SimpleRecord]) -> None:
    ours = build_batch(simple, compression=codec)
    assert read_by(AiokafkaBatch, bytes(ours)) == [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in as_read(simple, 0)
    ]


@few
@given(simple=records, codec=st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_kafka_python_reads_what_is_built(simple: list[SimpleRecord], codec: Compression) -> None:
    ours = build_batch(simple, compression=codec)
    assert read_by(KafkaPythonBatch, bytes(ours)) == [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in as_read(simple, 0)
    ]
