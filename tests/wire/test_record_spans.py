"""Records dropped from a batch without decoding those that stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import WireError
from wire.records import BatchHeader, Compression, SimpleRecord, build_batch, crc_ok
from wire.records.header import set_log_append_time
from wire.records.record import iterate_records, records_of
from wire.records.spans import (
    KeptRecords,
    RecordSpan,
    batch_of_spans,
    batch_without_records,
    empty_batch,
    scan_records,
    timestamp_of,
)

SIZES = st.sampled_from([0, 1, 63, 64, 100, 8191, 8192, 20_000])
RECORDS = st.lists(
    st.builds(
        SimpleRecord,
        st.none() | SIZES.map(bytes),
        st.none() | SIZES.map(bytes),
        st.integers(-1, 2**41),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=6,
)
BOUND = 1 << 20


def kept_of(spans: list[RecordSpan]) -> KeptRecords:
    kept = KeptRecords()
    kept.add(spans)
    return kept


@given(records=RECORDS, codec=st.sampled_from(Compression), data=st.data())
def test_what_stays_is_as_it_was(
    records: list[SimpleRecord], codec: Compression, data: st.DataObject
) -> None:
    batch = build_batch(records, base_offset=70, compression=codec, producer_id=5, base_sequence=9)
    header = BatchHeader.parse(batch)
    body = records_of(header, batch, BOUND)
    spans, position = scan_records(body, 0, len(records))
    assert position == len(body)
    assert [(span[3], span[4]) for span in spans] == [
        (record.key, record.value is not None) for record in records
    ]
    assert [timestamp_of(header, body, span[0]) for span in spans] == [
        record.timestamp for record in records
    ]
    horizon = data.draw(st.none() | st.integers(0, 2**42))
    kept = [span for span in spans if data.draw(st.booleans())]
    made = batch_of_spans(header, body, kept_of(kept), delete_horizon_ms=horizon, max_timestamp=7)
    after = BatchHeader.parse(made)
    assert crc_ok(made)
    assert (after.record_count, after.max_timestamp) == (len(kept), 7)
    assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
    assert (after.base_sequence, after.last_sequence) == (9, header.last_sequence)
    assert after.has_delete_horizon is (horizon is not None)
    assert after.base_timestamp == (header.base_timestamp if horizon is None else horizon)
    before = {record.offset: record for record in iterate_records(batch)}
    assert list(iterate_records(made)) == [before[70 + span[2]] for span in kept]


def test_an_empty_batch_tells_of_its_producer_alone() -> None:
    batch = build_batch(
        [SimpleRecord(b"k", b"v", 5)] * 3,
        base_offset=10,
        compression=Compression.ZSTD,
        producer_id=5,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        is_transactional=True,
    )
    header = BatchHeader.parse(batch)
    made = empty_batch(header)
    after = BatchHeader.parse(made)
    assert crc_ok(made) and list(iterate_records(made)) == []
    assert after.is_transactional and after.compression is Compression.NONE
    assert (after.record_count, after.base_timestamp, after.max_timestamp) == (0, -1, 5)
    assert (after.last_offset, after.last_sequence) == (12, header.last_sequence)


def test_a_batch_without_records_is_whole_and_tells_of_nothing_but_its_offsets() -> None:
    made = batch_without_records(10, 15, 3)
    header = BatchHeader.parse(made)
    assert crc_ok(made) and list(iterate_records(made)) == []
    assert (header.base_offset, header.next_offset, header.partition_leader_epoch) == (10, 15, 3)
    assert (header.producer_id, header.max_timestamp, header.size_bytes) == (-1, -1, len(made))


def test_timestamps_of_the_brokers_time_stay_the_brokers() -> None:
    batch = build_batch([SimpleRecord(b"k", b"v", 5)])
    set_log_append_time(batch, 99)
    header = BatchHeader.parse(batch)
    body = records_of(header, batch, BOUND)
    spans, _ = scan_records(body, 0, 1)
    assert timestamp_of(header, body, spans[0][0]) == 99


@pytest.mark.parametrize("base_timestamp", [-(2**63), 2**63 - 1])
def test_a_record_stays_readable_whatever_time_its_batch_begins_at(base_timestamp: int) -> None:
    # Under log append time nothing bounds what a client writes there.
    batch = build_batch([SimpleRecord(b"k", b"v", base_timestamp)])
    set_log_append_time(batch, 99)
    header = BatchHeader.parse(batch)
    body = records_of(header, batch, BOUND)
    kept = kept_of(scan_records(body, 0, 1)[0])
    # Those of a deleted transaction, and of a log from before 1970.
    for horizon in (2**42, -5):
        made = batch_of_spans(header, body, kept, delete_horizon_ms=horizon, max_timestamp=99)
        assert [record[1:4] for record in iterate_records(made)] == [(99, b"k", b"v")]


@given(st.binary(max_size=40), st.integers(1, 4))
def test_garbage_is_refused_or_read_within_its_bounds(body: bytes, count: int) -> None:
    try:
        spans, position = scan_records(body, 0, count)
    except WireError:
        return
    assert len(spans) == count and position <= len(body)
    assert all(0 <= span[0] < span[1] <= len(body) for span in spans)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_record_that_is_cut_off_is_refused(cut: int) -> None:
    batch = build_batch([SimpleRecord(b"key", b"value" * 10, 5)])
    body = bytes(batch[61:])
    with pytest.raises(WireError):
        scan_records(body[:-cut], 0, 1)
