"""Batches that Apache Kafka's own Java client wrote: read as they are, written byte for byte alike.

Made with kafka-clients 4.3.1 (MemoryRecords.withRecords, withIdempotentRecords,
withTransactionalRecords, withEndTransactionMarker), in all of them the three records below.
"""

from __future__ import annotations

import pytest

from wire.errors import KafkaError, WireError
from wire.records import (
    BatchHeader,
    Compression,
    ControlType,
    Marker,
    Record,
    SimpleRecord,
    TimestampType,
    build_batch,
    build_marker,
    crc_ok,
    iterate_batches,
    iterate_records,
    parse_marker,
    set_log_append_time,
    validate_batch,
    validate_records,
)

TIME_MS = 1_700_000_000_000
RECORDS = [
    SimpleRecord(b"k1", b"v1", TIME_MS, (("h", b"1"), ("", None))),
    SimpleRecord(None, b"hello " * 50, TIME_MS + 5),
    SimpleRecord(b"k3", None, TIME_MS - 3),
]
#: The three records, encoded.
BODY = (
    "20000000046b3104763104026802310001e604000a0201d804"
    + (b"hello " * 50).hex()
    + "0010000504046b330100"
)
JAVA = {
    name: bytes.fromhex(digits)
    for name, digits in {
        "none": "0000000000000007000001800000000302f8134b690000000000020000018bcfe5680000"
        "00018bcfe56805ffffffffffffffffffffffffffff00000003" + BODY,
        "gzip": "0000000000000007000000720000000302e67f4de30001000000020000018bcfe5680000"
        "00018bcfe56805ffffffffffffffffffffffffffff000000031f8b08000000000000ff53"
        "60606060c9366429336461ca603264607cc6c2c0c5c4788325233527275f619424866410"
        "60606561c93666640000d99923884f010000",
        "snappy": "00000000000000070000008100000003020537aabf0002000000020000018bcfe5680000"
        "00018bcfe56805ffffffffffffffffffffffffffff0000000382534e4150505900000000"
        "01000000010000003ccf027820000000046b3104763104026802310001e604000a0201d8"
        "0468656c6c6f20fe0600fe0600fe0600fe0600960600240010000504046b330100",
        "lz4": "0000000000000007000000700000000302f8e80d0b0003000000020000018bcfe5680000"
        "00018bcfe56805ffffffffffffffffffffffffffff0000000304224d1860408230000000"
        "ff1020000000046b3104763104026802310001e604000a0201d80468656c6c6f200600ff"
        "14a00010000504046b33010000000000",
        "zstd": "00000000000000070000006e00000003026f68423b0004000000020000018bcfe5680000"
        "00018bcfe56805ffffffffffffffffffffffffffff0000000328b52ffd00588c01009402"
        "20000000046b3104763104026802310001e604000a0201d80468656c6c6f200010000504"
        "046b33010001008f442d4e010000",
        "idempotent": "00000000000000000000018000000000026d3b6da60000000000020000018bcfe5680000"
        "00018bcfe568050000011f71fb04cb00057ffffffe00000003" + BODY,
        "transactional": "000000000000000900000180000000020285df5c5f0010000000020000018bcfe5680000"
        "00018bcfe568050000000000000fa000010000000000000003" + BODY,
        "commit": "000000000000000c000000420000000202c31b5a230030000000000000018bcfe5680000"
        "00018bcfe568000000000000000fa00001ffffffff000000012000000008000000010c00"
        "000000001100",
        "abort": "000000000000000d0000004200000002026db1698c0030000000000000018bcfe5680000"
        "00018bcfe568000000000000000fa00002ffffffff000000012000000008000000000c00"
        "000000000000",
        "append_time": "000000000000000700000180ffffffff024bd019c30008000000020000018bcfe5680000"
        "0001a1fe0fcd1dffffffffffffffffffffffffffff00000003" + BODY,
        "magic_1": "000000000000000000000018a04a244901000000018bcfe567fd000000026b33ffffffff",
    }.items()
}
CODECS = list(Compression)


def build_as(name: str) -> bytearray:
    match name:
        case "none":
            return build_batch(RECORDS, base_offset=7, leader_epoch=3)
        case "idempotent":
            return build_batch(
                RECORDS, producer_id=1234567890123, producer_epoch=5, base_sequence=2**31 - 2
            )
        case "transactional":
            return build_batch(
                RECORDS,
                base_offset=9,
                leader_epoch=2,
                producer_id=4000,
                producer_epoch=1,
                base_sequence=0,
                is_transactional=True,
            )
        case "commit" | "abort":
            commit = name == "commit"
            return build_marker(
                base_offset=12 if commit else 13,
                producer_id=4000,
                producer_epoch=1 if commit else 2,
                coordinator_epoch=17 if commit else 0,
                commit=commit,
                timestamp_ms=TIME_MS,
                leader_epoch=2,
            )
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize("name", ["none", "idempotent", "transactional", "commit", "abort"])
def test_what_java_writes_is_written_byte_for_byte(name: str) -> None:
    assert build_as(name).hex() == JAVA[name].hex()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_java_compresses_is_read(codec: Compression) -> None:
    batch = JAVA[codec.name.lower()]
    assert crc_ok(batch)
    header = BatchHeader.parse(batch)
    assert header.compression is codec
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.partition_leader_epoch, header.record_count) == (3, 3)
    assert (header.base_timestamp, header.max_timestamp) == (TIME_MS, TIME_MS + 5)
    assert list(iterate_records(batch)) == [
        Record(7 + delta, record.timestamp, record.key, record.value, tuple(record.headers))
        for delta, record in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_java_produces_is_accepted(codec: Compression) -> None:
    batch = bytearray(JAVA[codec.name.lower()])
    batch[:8] = bytes(8)
    assert validate_batch(batch, size_bytes_max=len(batch)).compression is codec
    validate_records(BatchHeader.parse(batch), batch)


def test_an_idempotent_batch_knows_its_sequences_across_the_wrap() -> None:
    header = BatchHeader.parse(JAVA["idempotent"])
    assert header.is_idempotent and not header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (1234567890123, 5)
    assert (header.base_sequence, header.last_sequence) == (2**31 - 2, 0)


def test_a_transactional_batch_says_so() -> None:
    header = BatchHeader.parse(JAVA["transactional"])
    assert header.is_transactional and header.is_idempotent and not header.is_control


@pytest.mark.parametrize(
    ("name", "marker"),
    [("commit", Marker(ControlType.COMMIT, 17)), ("abort", Marker(ControlType.ABORT, 0))],
)
def test_markers_are_read(name: str, marker: Marker) -> None:
    header = BatchHeader.parse(JAVA[name])
    assert header.is_control and header.is_transactional and header.base_sequence == -1
    assert header.last_sequence == -1
    assert parse_marker(JAVA[name]) == marker


def test_a_marker_is_refused_from_a_producer() -> None:
    batch = bytearray(JAVA["commit"])
    batch[:8] = bytes(8)
    with pytest.raises(KafkaError, match=r"INVALID_RECORD: control records"):
        validate_batch(batch)


def test_data_is_no_marker() -> None:
    with pytest.raises(WireError, match="no control batch"):
        parse_marker(JAVA["transactional"])


def test_under_log_append_time_every_record_has_the_time_of_the_append() -> None:
    batch = JAVA["append_time"]
    header = BatchHeader.parse(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in iterate_records(batch)} == {header.max_timestamp}


def test_log_append_time_is_set_as_java_sets_it() -> None:
    batch = build_batch(RECORDS, base_offset=7, leader_epoch=-1)
    set_log_append_time(batch, BatchHeader.parse(JAVA["append_time"]).max_timestamp)
    assert batch.hex() == JAVA["append_time"].hex()


def test_older_formats_are_refused() -> None:
    with pytest.raises(KafkaError, match="INVALID_RECORD: a batch of magic 1"):
        validate_batch(JAVA["magic_1"])


def test_batches_are_found_one_after_another_up_to_an_incomplete_tail() -> None:
    names = ["none", "zstd", "commit", "abort"]
    log = b"".join(JAVA[name] for name in names)
    assert [bytes(batch) for _, batch in iterate_batches(log)] == [JAVA[name] for name in names]
    for cut in (len(log) - 1, len(log) - len(JAVA["abort"]) + 60):
        assert len(list(iterate_batches(log[:cut]))) == 3
