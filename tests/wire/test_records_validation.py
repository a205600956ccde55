"""What a producer may not send, and which error says so."""

from __future__ import annotations

from struct import pack_into

import pytest

from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused
from wire.records import (
    BatchHeader,
    Buffer,
    Compression,
    InflatesTooFar,
    RecordRules,
    SimpleRecord,
    build_batch,
    check_max_timestamp,
    set_log_append_time,
    validate_batch,
    validate_records,
)
from wire.records.header import pack_batch
from wire.records.walk import NO_RULES, WITHOUT_KEY

NOW_MS = 1_700_000_000_000
RECORDS = [SimpleRecord(b"k", b"v" * 100, NOW_MS + delta) for delta in range(3)]


def batch_with(codec: Compression = Compression.NONE, /, **fields: int) -> bytearray:
    """Return a batch whose header says something else than it should, under a right CRC."""
    batch = build_batch(RECORDS, compression=codec)
    header = BatchHeader.parse(batch)._replace(**fields)
    return pack_batch(header, batch[61:])


def refusal(records: Buffer | None, size_bytes_max: int | None = None) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        validate_batch(records, size_bytes_max=size_bytes_max)
    assert refused.value.detail
    return refused.value.code


def test_a_batch_as_it_should_be_is_accepted() -> None:
    batch = build_batch(RECORDS)
    assert validate_batch(memoryview(bytes(batch))) == BatchHeader.parse(batch)
    assert validate_batch(batch, size_bytes_max=len(batch)).record_count == 3


@pytest.mark.parametrize("records", [None, b"", bytes(11)], ids=["null", "empty", "too short"])
def test_no_batch_at_all_is_refused(records: bytes | None) -> None:
    assert refusal(records) is ErrorCode.INVALID_RECORD


def test_a_part_of_a_batch_is_refused() -> None:
    batch = build_batch(RECORDS)
    for size_bytes in (12, 16, 17, 40, 61, len(batch) - 1):
        assert refusal(batch[:size_bytes]) is ErrorCode.INVALID_RECORD


def test_bytes_after_the_batch_are_refused() -> None:
    batch = build_batch(RECORDS)
    assert refusal(batch + b"\0") is ErrorCode.INVALID_RECORD
    assert refusal(batch + batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("batch_length", [-(2**31), -1, 0, 13, 14, 48])
def test_a_batch_that_claims_to_be_shorter_than_its_header_is_corrupt(batch_length: int) -> None:
    batch = build_batch(RECORDS)
    pack_into(">i", batch, 8, batch_length)
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (255, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_another_magic_is_refused(magic: int, code: ErrorCode) -> None:
    batch = build_batch(RECORDS)
    batch[16] = magic
    assert refusal(batch) is code


def test_any_flipped_bit_under_the_crc_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    for position in (17, 21, 23, 43, 57, 61, len(batch) - 1):
        flipped = bytearray(batch)
        flipped[position] ^= 0x10
        assert refusal(flipped) is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_over_the_limit_is_too_large_whatever_its_crc() -> None:
    batch = build_batch(RECORDS)
    batch[-1] ^= 1
    assert refusal(batch, len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 1},
        {"base_offset": -1},
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 2},
        {"record_count": 4},
        {"last_offset_delta": -1},
        {"last_offset_delta": 2**31 - 1},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1},
        {"attributes": 0x20},
        {"attributes": 0x40},
        {"attributes": 0x10},
        {"producer_id": -2},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_is_invalid(fields: dict[str, int]) -> None:
    assert refusal(batch_with(**fields)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_unsupported(codec: int) -> None:
    assert refusal(batch_with(attributes=codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_instead_of_a_compressed_stream_is_invalid(codec: int) -> None:
    header = BatchHeader.parse(build_batch(RECORDS))._replace(attributes=codec)
    for garbage in (b"\xff" * 49, b""):
        batch = pack_batch(header._replace(batch_length=49 + len(garbage)), garbage)
        assert refusal(batch) is ErrorCode.INVALID_RECORD


def test_log_append_time_is_not_for_producers() -> None:
    batch = build_batch(RECORDS)
    set_log_append_time(batch, NOW_MS)
    assert refusal(batch) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("max_timestamp", "is_accepted"),
    [
        (NOW_MS + 500, True),
        (NOW_MS + 501, False),
        (NOW_MS - 1001, False),
        (-1, True),
        (-2, False),
        (-(2**63), False),
    ],
)
def test_a_max_timestamp_that_no_record_may_have_is_refused(
    max_timestamp: int, is_accepted: bool
) -> None:
    header = BatchHeader.parse(batch_with(max_timestamp=max_timestamp))
    rules = RecordRules(timestamp_min=NOW_MS - 1000, timestamp_max=NOW_MS + 500)
    if is_accepted:
        check_max_timestamp(header, rules)
        return
    with pytest.raises(KafkaError, match="INVALID_TIMESTAMP"):
        check_max_timestamp(header, rules)


def validate(batch: bytearray, rules: RecordRules = NO_RULES) -> None:
    validate_records(BatchHeader.parse(batch), batch, rules)


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Compression) -> None:
    rules = RecordRules(key_required=True)
    validate(build_batch(RECORDS, compression=codec), rules)
    without_key = build_batch([*RECORDS, SimpleRecord(None, b"v", 0)], compression=codec)
    validate(without_key)
    with pytest.raises(RecordsRefused, match="INVALID_RECORD: .*without key") as refused:
        validate(without_key, rules)
    assert refused.value.flaws == [(3, WITHOUT_KEY)]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
def test_records_that_belie_their_header_are_invalid(codec: Compression) -> None:
    batch = batch_with(codec, record_count=2, last_offset_delta=1)
    validate_batch(batch)
    with pytest.raises(KafkaError, match="INVALID_RECORD: .* bytes after the last of 2 records"):
        validate(batch)


def test_offset_deltas_count_from_zero() -> None:
    batch = build_batch([RECORDS[0]])
    record = bytearray(batch[61:])
    record[4] = 8  # length (2 bytes), attributes, timestamp delta, offset delta: 4 as a zigzag
    with pytest.raises(KafkaError, match="INVALID_RECORD: record 0 of 1: offset delta 4"):
        validate(pack_batch(BatchHeader.parse(batch), record))


def test_a_stream_that_is_rotten_behind_a_good_head_is_refused() -> None:
    whole = build_batch(RECORDS * 2000, compression=Compression.GZIP)
    body = bytearray(whole[61:])
    body[-20] ^= 0xFF
    with pytest.raises(KafkaError, match="INVALID_RECORD: gzip"):
        validate(pack_batch(BatchHeader.parse(whole), body))


def test_a_stream_is_inflated_up_to_the_bound() -> None:
    batch = build_batch([SimpleRecord(None, bytes(100_000), NOW_MS)], compression=Compression.ZSTD)
    header = BatchHeader.parse(batch)
    validate_records(header, batch, max_bytes=100_100)
    with pytest.raises(InflatesTooFar):
        validate_records(header, batch, max_bytes=100_000)
