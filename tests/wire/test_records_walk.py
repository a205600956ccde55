"""The walk over a produced batch's records: it takes what decoding takes, and nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused, WireError
from wire.records import BatchHeader, RecordRules, SimpleRecord, build_batch, iterate_records, walk
from wire.records.header import pack_batch
from wire.records.varint import read_varint
from wire.records.walk import NO_RULES, REFUSED_NAMED_MAX, TakesManySteps, check_records

NOW_MS = 1_700_000_000_000


def check(batch: bytearray, rules: RecordRules = NO_RULES) -> None:
    check_records(bytes(batch[61:]), BatchHeader.parse(batch), rules)


def with_body(batch: bytearray, body: bytes | bytearray) -> bytearray:
    header = BatchHeader.parse(batch)._replace(batch_length=49 + len(body))
    return pack_batch(header, body)


def record(
    size: int = 10, key: bytes | None = b"key", ahead_ms: int = 0, headers: int = 0
) -> SimpleRecord:
    return SimpleRecord(key, b"v" * size, NOW_MS + ahead_ms, [("name", b"value")] * headers)


#: Runs of equal records, of records that differ in size, and of those that take the long way.
SHAPES = st.sampled_from(
    [
        record(),
        record(0, None),
        record(63),
        record(64),
        record(200, headers=1),
        record(200, headers=3),
        record(9000),
        record(9001, None, ahead_ms=64),
        record(20_000, headers=3),
        record(5, b"k" * 70),
        record(80, b"k" * 64, headers=1),
        record(ahead_ms=-70),
        record(ahead_ms=9000),
        record(ahead_ms=2_000_000),
        record(80, ahead_ms=64),
    ]
)
BATCHES = st.lists(st.tuples(SHAPES, st.sampled_from([1, 2, 70])), min_size=1, max_size=8).map(
    lambda runs: [one for one, times in runs for _ in range(times)]
)


def as_decoding_says(batch: bytearray, rules: RecordRules) -> tuple[list[int], ErrorCode] | None:
    """Return the places of refused records and the code, by the slow way; None: no records."""
    late, keyless = [], []
    try:
        for place, one in enumerate(iterate_records(batch)):
            if one.offset != place:
                return None
            if rules.key_required and one.key is None:
                keyless.append(place)
            elif one.timestamp != -1 and not (
                rules.timestamp_min <= one.timestamp <= rules.timestamp_max
            ):
                late.append(place)
    except WireError:
        return None
    code = ErrorCode.INVALID_TIMESTAMP if late else ErrorCode.INVALID_RECORD
    return sorted(late + keyless)[:REFUSED_NAMED_MAX], code


def as_the_walk_says(batch: bytearray, rules: RecordRules) -> tuple[list[int], ErrorCode] | None:
    try:
        check(batch, rules)
    except RecordsRefused as refused:
        return [place for place, _ in refused.flaws], refused.code
    except KafkaError as refused:
        assert refused.code is ErrorCode.INVALID_RECORD
        return None
    return [], ErrorCode.INVALID_RECORD


RULES = st.sampled_from(
    [
        NO_RULES,
        RecordRules(key_required=True),
        RecordRules(timestamp_max=NOW_MS + 10),
        RecordRules(timestamp_min=NOW_MS - 10, timestamp_max=NOW_MS + 70),
        RecordRules(timestamp_max=NOW_MS + 3_600_000),
    ]
)


@given(BATCHES, RULES)
def test_the_walk_takes_what_decoding_takes(
    records: list[SimpleRecord], rules: RecordRules
) -> None:
    batch = build_batch(records)
    assert as_the_walk_says(batch, rules) == as_decoding_says(batch, rules)


@given(
    BATCHES,
    RULES,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
)
@example([record()] * 100, NO_RULES, [(19 * 90, 0)])
def test_the_walk_finds_what_decoding_finds_in_damaged_records(
    records: list[SimpleRecord], rules: RecordRules, edits: Sequence[tuple[int, int]]
) -> None:
    whole = build_batch(records)
    body = whole[61:]
    for position, byte in edits:
        body[position % len(body)] = byte
    batch = with_body(whole, body)
    assert as_the_walk_says(batch, rules) == as_decoding_says(batch, rules)


@given(BATCHES, st.integers(0, 10**6))
def test_records_that_are_exchanged_cut_or_doubled_are_found(
    records: list[SimpleRecord], at: int
) -> None:
    whole = build_batch(records)
    body = bytes(whole[61:])
    at %= len(body)
    for damaged in (body[:at], body[:at] + body[at + 1 :], body + body[:at], body + body):
        batch = with_body(whole, damaged)
        assert as_the_walk_says(batch, NO_RULES) == as_decoding_says(batch, NO_RULES)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        *product([(10,), (10, 11), (100, 101, 30)], [63, 64, 65, 8191, 8192, 8193, 20_000]),
        *product([(8200, 8201)], [63, 64, 65, 66, 200]),
    ],
    ids=str,
)
def test_offset_deltas_are_counted_through_all_their_lengths(
    sizes: tuple[int, ...], count: int
) -> None:
    records = [record(sizes[place % len(sizes)]) for place in range(count)]
    whole = build_batch(records)
    check(whole)
    # The last record's offset delta is that of the one before it.
    doubled = build_batch([*records[:-1], records[-1]])
    tail = build_batch(records[-1:])[61:]
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        check(with_body(doubled, whole[61 : len(whole) - len(tail)] + tail))


def test_more_records_than_bytes_are_refused_at_once() -> None:
    batch = build_batch([record()])
    header = BatchHeader.parse(batch)._replace(record_count=2**31 - 1)
    with pytest.raises(KafkaError, match="2147483647 records in"):
        check_records(bytes(batch[61:]), header, NO_RULES)


@pytest.mark.parametrize(("size", "bytes_of_length"), [(100, 2), (9000, 3)])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_record_over_the_limit_is_refused(size: int, bytes_of_length: int, place: int) -> None:
    records = [record(size)] * 4
    length = (len(build_batch(records)) - 61) // 4 - bytes_of_length
    records[place] = record(size + 1)
    batch = build_batch(records)
    check(batch, RecordRules(record_bytes_max=length + 1))
    with pytest.raises(KafkaError, match=f"INVALID_RECORD: .*{length + 1} bytes long, at most"):
        check(batch, RecordRules(record_bytes_max=length))


#: The first bytes of a large record: its length in three, attributes, timestamp, offset, the key's
#: length and the key, the value's length in three.
_HEAD_BYTES = 3 + 1 + 1 + 1 + 1 + 3 + 3


@pytest.mark.parametrize("place", range(_HEAD_BYTES))
@pytest.mark.parametrize("change", [1, 2, 0x80])
def test_a_damaged_head_of_a_large_record_is_found(place: int, change: int) -> None:
    whole = build_batch([record(9000 + index % 3, headers=index % 2) for index in range(10)])
    body = whole[61:]
    spans = [3 + length for length in _lengths(body)]
    body[sum(spans[:6]) + place] ^= change
    batch = with_body(whole, body)
    rules = RecordRules(timestamp_min=NOW_MS - 100_000, timestamp_max=NOW_MS + 100_000)
    assert as_the_walk_says(batch, rules) == as_decoding_says(batch, rules)


def _lengths(body: bytearray) -> list[int]:
    """Return the lengths of records, of three bytes each."""
    found, position = [], 0
    while position < len(body):
        length, at = read_varint(bytes(body), position)
        assert at == position + 3
        found.append(length)
        position = at + length
    return found


def test_a_refusal_counts_all_and_names_the_first_thousand() -> None:
    batch = build_batch([record(key=None)] * 3000)
    with pytest.raises(RecordsRefused, match="3000 records, the first is 0") as refused:
        check(batch, RecordRules(key_required=True))
    assert [place for place, _ in refused.value.flaws] == list(range(1000))


@pytest.mark.parametrize("count", [1, 2, 60])
def test_a_null_key_is_found_however_many_bytes_say_so(count: int) -> None:
    body = b"".join(bytes([14, 0, 0, 2 * index, 0x81, 0, 1, 0]) for index in range(count))
    batch = with_body(build_batch([record(key=None)] * count), body)
    assert [one.key for one in iterate_records(batch)] == [None] * count
    check(batch)
    with pytest.raises(RecordsRefused) as refused:
        check(batch, RecordRules(key_required=True))
    assert [place for place, _ in refused.value.flaws] == list(range(count))


CHANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3)


@given(SHAPES, CHANGES, st.integers(-2, 2), st.booleans())
def test_one_record_alone_is_judged_as_the_walk_judges_it(
    one: SimpleRecord, changes: list[tuple[int, int]], longer: int, key_required: bool
) -> None:
    batch = build_batch([one])
    body = bytearray(batch[61:]) + bytes(max(longer, 0))
    del body[len(body) + min(longer, 0) :]
    for place, byte in changes:
        body[place % len(body)] = byte
    rules = RecordRules(key_required, NOW_MS - 100_000, NOW_MS + 100_000)
    judged: list[ErrorCode | None] = []
    for is_plain in (walk._is_plain, lambda *_: False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walk, "_is_plain", is_plain)
            try:
                check_records(bytes(body), BatchHeader.parse(batch), rules)
                judged.append(None)
            except KafkaError as refusal:
                judged.append(refusal.code)
    assert judged[0] == judged[1]


def test_usual_records_alone_take_the_short_way() -> None:
    for one in (record(), record(0, None), record(63), record(64), record(8000)):
        batch = build_batch([one])
        assert walk._is_plain(bytes(batch[61:]), NOW_MS, NO_RULES)


@pytest.mark.parametrize(
    "records",
    [
        [record(headers=3000)],
        # Timestamps of three bytes: no record is a usual one.
        [record(ahead_ms=20_000 * (place % 2)) for place in range(1000)],
        [record(place % 2, headers=31) for place in range(500)],
    ],
    ids=["one record of many headers", "unusual records", "records of many headers"],
)
def test_a_check_ends_where_it_takes_too_many_steps(records: list[SimpleRecord]) -> None:
    batch = build_batch(records)
    header, body = BatchHeader.parse(batch), bytes(batch[61:])
    check_records(body, header, NO_RULES)
    with pytest.raises(TakesManySteps):
        check_records(body, header, NO_RULES, 10_000)


@pytest.mark.parametrize(
    "records",
    [
        [record(place % 50, headers=1) for place in range(3000)],
        [record(place % 50, b"k" * (40 + place % 90)) for place in range(3000)],
        [record(9000 + place % 50, headers=1) for place in range(63)],
    ],
    ids=["small", "keys of 64 bytes and more", "large"],
)
def test_usual_records_take_few_steps(records: list[SimpleRecord]) -> None:
    batch = build_batch(records)
    # Each is a step and each of its fields; a few are looked at alone, for 32.
    steps_max = 3 * len(records) + 400
    check_records(bytes(batch[61:]), BatchHeader.parse(batch), NO_RULES, steps_max)


def test_what_cannot_be_checked_in_few_steps_is_not_begun() -> None:
    batch = build_batch([record(headers=3000)])
    header = BatchHeader.parse(batch)._replace(record_count=1)
    with pytest.raises(TakesManySteps, match="record 0"):
        # The headers are rotten: a reader that decoded them would raise.
        check_records(bytes(batch[61:]).replace(b"\x08name", b"\x01name"), header, NO_RULES, 10_000)


def test_headers_take_no_memory_beside_the_batch() -> None:
    batch = build_batch([record(headers=100_000)])
    header, body = BatchHeader.parse(batch), bytes(batch[61:])
    tracemalloc.start()
    try:
        check_records(body, header, NO_RULES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


@pytest.mark.parametrize("size", [300, 900])
def test_where_no_record_is_like_the_last_one_no_look_goes_far(size: int) -> None:
    # Of one size, but their keys are not, and their timestamps are unusual: each is looked at, and
    # then whether others are like it.
    batch = build_batch(
        [record()]
        + [
            SimpleRecord(b"k" * (10 + place % 2), b"v" * (size - place % 2), NOW_MS + 20_000)
            for place in range(2000)
        ]
    )
    header, body = BatchHeader.parse(batch), bytes(batch[61:])
    check_records(body, header, NO_RULES)
    tracemalloc.start()
    try:
        check_records(body, header, NO_RULES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000 < len(body)
