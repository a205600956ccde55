"""Records in and out of the command line: lines, formats, partitions, where to begin, aborted."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as aiokafkas_murmur2
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.commands import unescape
from magnetar.cli.consume import parse_begin
from magnetar.cli.record_text import LineFormat, compile_format, json_line, lines, read_records
from magnetar.client import ClientError
from magnetar.client.batching import ProducerRecord, murmur2, partition_for
from magnetar.client.consumer import Begin, Fetched, Reader
from magnetar.client.group_member import assign_by_range
from magnetar.client.partitions import READ_COMMITTED, READ_UNCOMMITTED
from wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from wire.records import Record, SimpleRecord, build_batch, build_marker

RECORD = Record(7, 1_000, b"k", b"v", (("h", b"1"), ("n", None)))
FETCHED = Fetched("orders", 3, RECORD)


@given(st.binary(max_size=40))
def test_keys_are_hashed_as_other_clients_hash_them(key: bytes) -> None:
    assert murmur2(key) == aiokafkas_murmur2(key) & 0xFFFFFFFF


def test_a_partition_is_never_negative() -> None:
    assert {partition_for(b"%d" % number, 3) for number in range(100)} == {0, 1, 2}


def records(text: bytes, form: LineFormat) -> list[ProducerRecord]:
    return [record for each in read_records(io.BytesIO(text), form) for record in each]


def pairs(text: bytes, **form: Any) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records(text, LineFormat(**form))]


def test_lines_are_records() -> None:
    assert pairs(b"a\nb\n") == [(None, b"a"), (None, b"b")]
    assert pairs(b"a\n\nb") == [(None, b"a"), (None, b""), (None, b"b")]
    assert pairs(b"a;b;", delimiter=b";") == [(None, b"a"), (None, b"b")]
    assert pairs(b"") == []


def test_the_key_is_before_the_first_delimiter() -> None:
    assert pairs(b"k:v:w\nplain", key_delimiter=b":") == [(b"k", b"v:w"), (None, b"plain")]
    assert pairs(b"k:v\nw", key_delimiter=b":", key=b"d") == [(b"k", b"v"), (b"d", b"w")]
    assert pairs(b"k:\n:v", key_delimiter=b":", empty_is_null=True) == [(b"k", None), (None, b"v")]


@given(
    st.lists(
        st.tuples(st.none() | st.binary(), st.none() | st.binary(), st.integers(0, 2**40)),
        max_size=5,
    )
)
def test_what_is_printed_as_json_is_read_as_it_was(
    wanted: list[tuple[bytes | None, bytes | None, int]],
) -> None:
    text = b"".join(
        json_line(Fetched("a", 0, Record(0, timestamp, key, value, (("h", b"x"),))))
        for key, value, timestamp in wanted
    )
    found = records(text, LineFormat(is_json=True))
    assert [(record.key, record.value, record.timestamp) for record in found] == wanted
    assert all(record.headers == [("h", b"x")] for record in found)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"value_base64": "!"}', b'{"timestamp": "x"}'])
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(ClientError, match="line 2 is no record"):
        records(b'{"value": "good"}\n' + line, LineFormat(is_json=True))


def test_lines_that_come_slowly_are_not_kept_waiting() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream:
        found = read_records(stream, LineFormat())
        os.write(write_end, b"first\nsec")
        assert [record.value for record in next(found)] == [b"first"]
        os.write(write_end, b"ond\n")
        assert [record.value for record in next(found)] == [b"second"]
        os.close(write_end)
        assert list(found) == []


def test_a_format_shows_every_field() -> None:
    shown = compile_format(r"%t-%p@%o %T %k/%K %s/%S %h %%\n", b"")(FETCHED)
    assert shown == b"orders-3@7 1000 k/1 v/1 h=1,n=NULL %\n"
    null = Fetched("a", 0, RECORD._replace(key=None, value=None, headers=()))
    assert compile_format("%k/%K|%s|%h", b"NULL")(null) == b"NULL/-1|NULL|"
    assert lines(b"\t", b"\n", b"")(FETCHED) == b"k\tv\n"
    assert lines(None, b"\0", b"")(null) == b"\0"


@pytest.mark.parametrize(
    ("template", "message"),
    [("%q", "%q is not known"), ("100%", "ends with %"), (r"\q", r"\\q is")],
)
def test_a_bad_format_is_named(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_format(template, b"")


def test_escapes() -> None:
    assert unescape(r"a\tb\n\x41\\n\0") == "a\tb\nA\\n\0"


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("beginning", Begin(word=-2)),
        ("end", Begin(word=-1)),
        ("17", Begin(offset=17)),
        ("-5", Begin(before_end=5)),
        ("s@1795273200000", Begin(timestamp=1795273200000)),
        ("s@2026-11-21T15:00", Begin(timestamp=1795273200000)),
        ("s@2026-11-21T16:00+01:00", Begin(timestamp=1795273200000)),
    ],
)
def test_where_to_begin(text: str, begin: Begin) -> None:
    assert parse_begin(text) == begin


@pytest.mark.parametrize("text", ["", "begin", "s@", "s@soon", "1.5"])
def test_where_not_to_begin(text: str) -> None:
    with pytest.raises(ValueError, match="no offset|neither"):
        parse_begin(text)


def test_ranges_are_shared_out_topic_by_topic() -> None:
    wanted = {"a": ["y", "x"], "b": ["y"], "c": ["x", "y", "z"]}
    assert assign_by_range(wanted, {"a": 3, "b": 1, "c": 2}) == {
        "x": [("a", 0), ("a", 1), ("c", 0)],
        "y": [("a", 2), ("b", 0), ("c", 1)],
        "z": [],
    }


class OneAnswer:
    """A client whose one fetch is answered with this partition."""

    def __init__(self, partition: PartitionData) -> None:
        self._partition = partition

    def call(self, *_: object, **__: object) -> FetchResponse:
        topic = FetchableTopicResponse(topic="a", partitions=[self._partition])
        return FetchResponse(responses=[topic])


def data(offset: int, *values: bytes, producer_id: int = -1) -> bytearray:
    return build_batch(
        [SimpleRecord(None, value, 0) for value in values],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    return build_marker(
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=commit,
        timestamp_ms=0,
    )


LOG = b"".join(
    [
        data(0, b"plain"),
        data(1, b"aborted", b"aborted too", producer_id=1),
        data(3, b"committed", producer_id=2),
        data(4, b"plain between"),
        marker(5, 1, commit=False),
        data(6, b"committed later", producer_id=1),
        marker(7, 2, commit=True),
        marker(8, 1, commit=True),
        data(9, b"aborted again", producer_id=1),
        marker(10, 1, commit=False),
    ]
)
ABORTED = [
    AbortedTransaction(producer_id=1, first_offset=9),
    AbortedTransaction(producer_id=1, first_offset=1),
]


def read(isolation: int, records: bytes, position: int = 0) -> tuple[list[bytes | None], Reader]:
    partition = PartitionData(
        partition_index=0,
        high_watermark=11,
        last_stable_offset=11,
        aborted_transactions=ABORTED if isolation == READ_COMMITTED else None,
        records=records,
    )
    client: Any = OneAnswer(partition)
    reader = Reader(client, {("a", 0): 1}, {("a", 0): position}, isolation)
    return [fetched.record.value for fetched in reader.fetch()], reader


def test_a_committed_reader_is_shown_nothing_aborted() -> None:
    seen, reader = read(READ_COMMITTED, LOG)
    assert seen == [b"plain", b"committed", b"plain between", b"committed later"]
    assert reader.positions == {("a", 0): 11}
    assert reader.is_at_end


def test_an_uncommitted_reader_is_shown_everything_but_markers() -> None:
    seen, _ = read(READ_UNCOMMITTED, LOG)
    assert seen is not None and len(seen) == 7


def test_reading_begins_inside_a_batch_and_ends_before_half_of_one() -> None:
    seen, reader = read(READ_UNCOMMITTED, LOG[: len(data(0, b"plain")) + 100 + 61], position=2)
    assert seen == [b"aborted too"]
    assert reader.positions == {("a", 0): 3}
    assert not reader.is_at_end


def test_a_damaged_batch_is_named_with_the_way_round_it() -> None:
    damaged = bytearray(LOG)
    damaged[len(data(0, b"plain")) - 1] ^= 1
    with pytest.raises(ClientError, match="a-0 is damaged at offset 0: .* Offset 1 begins"):
        read(READ_UNCOMMITTED, bytes(damaged))
