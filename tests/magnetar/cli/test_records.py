"""Records in and out of the command line: lines, formats, where to begin."""

from __future__ import annotations

import io
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli import consume
from magnetar.cli.commands import unescape
from magnetar.cli.record_text import LineFormat, compile_format, json_line, lines, read_records
from magnetar.cli.where import parse_begin
from magnetar.client import ClientError, Unreachable
from magnetar.client.batching import ProducerRecord
from magnetar.client.consumer import Begin, Fetched
from wire.records import Record

RECORD = Record(7, 1_000, b"k", b"v", (("h", b"1"), ("n", None)))
FETCHED = Fetched("orders", 3, RECORD)


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


MAYBE_BYTES = st.none() | st.binary()


@given(
    st.lists(
        st.tuples(
            MAYBE_BYTES,
            MAYBE_BYTES,
            st.integers(0, 2**40),
            st.lists(st.tuples(st.text(), MAYBE_BYTES), max_size=2).map(tuple),
        ),
        max_size=5,
    )
)
def test_what_is_printed_as_json_is_read_as_it_was(
    wanted: list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]],
) -> None:
    text = b"".join(
        json_line(Fetched("a", 0, Record(0, timestamp, key, value, headers)))
        for key, value, timestamp, headers in wanted
    )
    found = records(text, LineFormat(is_json=True))
    assert [
        (record.key, record.value, record.timestamp, tuple(record.headers)) for record in found
    ] == wanted


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"key": "a", "vaule": "x"}', "'vaule' is no field"),
        (b'{"key": "a"}', "neither value nor value_base64"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value_base64": null}', "line 1"),
        (b'{"value": "a", "headers": [["h", {"base46": "YQ=="}]]}', "an object with base64 alone"),
        (b'{"value": "a", "headers": [[1, "x"]]}', "name of a header"),
        (b'{"value": "a", "headers": [["\\ud800", "x"]]}', "surrogates not allowed"),
        (b'{"value": "a", "timestamp": 99999999999999999999}', "does not fit into 64 bits"),
        (b'{"value": "a", "timestamp": 1e30}', "does not fit into 64 bits"),
        (b'{"value": "a", "timestamp": Infinity}', "inf is no whole number of ms"),
        (b'{"value": "a", "timestamp": 1.5}', "1.5 is no whole number of ms"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_mistake_in_json_makes_no_tombstone(line: bytes, complaint: str) -> None:
    with pytest.raises(ClientError, match=complaint):
        records(line, LineFormat(is_json=True))


def test_a_relative_time_is_counted_from_now() -> None:
    now_ms = time.time() * 1000
    ago_ms = now_ms - (parse_begin("-5m").timestamp or 0)
    assert 299_000 < ago_ms < 301_000
    assert parse_begin("-5") == Begin(before_end=5)
    assert parse_begin("-99999d") == Begin(timestamp=0)


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


def test_a_warning_of_a_hostile_broker_is_printed_in_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "_RETRY_S", 0)
    answers = iter([Unreachable("\x1b[31m:9092 does not answer")])

    def read() -> bool:
        for failure in answers:
            raise failure
        return True

    session: Any = SimpleNamespace(printed=0, at_end=False)
    consume._retry_unreachable(session, read)
    assert "\\x1b[31m:9092 does not answer" in capsys.readouterr().err
