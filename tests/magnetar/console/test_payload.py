"""Bytes as a person reads them, with a schema and without one."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from fastavro import schemaless_writer
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client import ClientError
from magnetar.console.decoding import Decoder, NotOfSchema, decoded
from magnetar.console.payload import SHOWN_CHARACTERS, indented, payload
from magnetar.console.registry import NoSchema, RegisteredSchema, Registry

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def test_what_the_bytes_are() -> None:
    assert payload(None).kind == "null"
    assert payload(b"").kind == "empty"
    assert payload(b"hello").kind == "text"
    assert payload(b"42").kind == "text"
    assert payload(b"\xff\xfe").kind == "binary"
    assert payload(b"a\0b").kind == "binary"
    assert payload(b'{"a": [1]}').text == '{\n  "a": [\n    1\n  ]\n}'
    assert payload(b'{"broken": ').kind == "text"
    assert payload(b"[" * 100_000).kind == "text"


def test_json_that_would_grow_a_thousandfold_is_shown_as_it_came() -> None:
    value = b"[" * 900 + b"1," * 90_000 + b"1" + b"]" * 900
    assert payload(value).text == value.decode()
    # What is nested as programs nest it is shown in lines.
    assert payload(b"[" * 8 + b"1," * 8 + b"1" + b"]" * 8).text.count("\n") > 16


def test_numbers_and_repeated_names_of_json_stay_as_they_are() -> None:
    text = '{"a":1.10,"a":123456789012345678901234567890,"b":[],"c":{}}'
    assert indented(text) == (
        '{\n  "a": 1.10,\n  "a": 123456789012345678901234567890,\n  "b": [],\n  "c": {}\n}'
    )


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    )
)
def test_indented_json_says_the_same(value: Any) -> None:
    assert json.loads(indented(json.dumps(value))) == value


@given(st.binary())
def test_any_bytes_have_a_text_without_hidden_characters(data: bytes) -> None:
    found = payload(data)
    assert not set(found.text) & {"\0", "\x1b", "\u202e", "\u200b", "\u2066", "\r"}
    assert len(found.preview) < 200


def test_characters_that_turn_text_around_are_escaped() -> None:
    assert payload("safe\u202egnp.exe".encode()).text == "safe\\u202egnp.exe"


def test_a_long_text_is_cut_also_within_a_character() -> None:
    found = payload(("é" * SHOWN_CHARACTERS).encode())
    assert found.is_cut and found.kind == "text" and set(found.text) == {"é"}


def framed(data: bytes, schema_id: int = 7) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + data


def registry(answers: dict[str, Any]) -> Registry:
    def fetch(url: str) -> Any:
        path = url.removeprefix("http://127.0.0.1:8081")
        if path not in answers:
            raise NoSchema("the schema registry answers 404")
        return answers[path]

    return Registry("http://127.0.0.1:8081/", fetch)


def avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, AVRO, value)
    return out.getvalue()


def test_avro_is_shown_as_json() -> None:
    decoder = Decoder(registry({"/schemas/ids/7": {"schema": json.dumps(AVRO)}}))
    found = decoder.decode(framed(avro({"id": 5})))
    assert found.kind == "avro" and json.loads(found.text) == {"id": 5}


def test_avro_that_refers_to_another_schema() -> None:
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "o", "type": "Order"}]}
    answers = {
        "/schemas/ids/7": {
            "schema": json.dumps(outer),
            "references": [{"name": "Order", "subject": "or/der", "version": 2}],
        },
        "/subjects/or%2Fder/versions/2": {"schema": json.dumps(AVRO)},
    }
    found = Decoder(registry(answers)).decode(framed(avro({"id": 5})))
    assert json.loads(found.text) == {"o": {"id": 5}}


def test_protobuf_is_shown_as_json_also_of_a_nested_type() -> None:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    outer = file.message_type.add(name="Order")
    inner = outer.nested_type.add(name="Item")
    for message in (outer, inner):
        message.field.add(
            name="item_name",
            number=1,
            type=FieldDescriptorProto.TYPE_STRING,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    serialized = base64.b64encode(file.SerializeToString()).decode()
    decoder = Decoder(
        registry(
            {
                "/schemas/ids/7": {"schemaType": "PROTOBUF", "schema": "text"},
                "/schemas/ids/7?format=serialized": {
                    "schemaType": "PROTOBUF",
                    "schema": serialized,
                },
            }
        )
    )
    data = b"\x0a\x05apple"
    for way in (b"\x00", b"\x02\x00", b"\x04\x00\x00"):
        found = decoder.decode(framed(way + data))
        assert found.kind == "protobuf" and json.loads(found.text) == {"item_name": "apple"}
    for way in (b"", b"\xff" * 11, b"\x02\x09", b"\x02\x01", b"\x7e"):
        assert decoder.decode(framed(way + data)).kind != "protobuf"


def test_what_cannot_be_decoded_is_shown_as_it_is_with_the_reason() -> None:
    decoder = Decoder(registry({"/schemas/ids/7": {"schema": json.dumps(AVRO)}}))
    found = decoder.decode(framed(b"\xff" * 20))
    assert found.kind == "binary" and "Schema 7: the data does not match it" in found.note
    assert "404" in decoder.decode(framed(b"x", 8)).note
    assert Decoder(None).decode(framed(b"x")).note == ""


@given(st.binary(max_size=200))
def test_no_data_of_another_schema_breaks_a_page(data: bytes) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", "string", "double"]},
            {"name": "b", "type": {"type": "map", "values": "bytes"}},
            {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["X"]}},
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
    decoder = Decoder(registry({"/schemas/ids/7": {"schema": json.dumps(schema)}}))
    assert decoder.decode(framed(data)).size_bytes == len(data) + 5


def test_a_registry_is_asked_once_for_a_schema_and_rarely_for_a_missing_one() -> None:
    asked = []

    def fetch(url: str) -> Any:
        asked.append(url)
        if url.endswith("/8"):
            raise NoSchema("the schema registry does not answer")
        return {"schema": "{}"}

    found = Registry("http://127.0.0.1:8081", fetch)
    for _ in range(3):
        found.schema(7)
        with pytest.raises(NoSchema):
            found.schema(8)
    assert len(asked) == 2


def test_an_address_that_is_none_of_http_is_a_mistake() -> None:
    for address in ("file:///etc/passwd", "registry:8081", ""):
        with pytest.raises(ClientError, match="no address"):
            Registry(address)


NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
EMPTY = {"type": "record", "name": "E", "fields": []}


@pytest.mark.parametrize("depth", [5000, 100_000])
def test_data_as_deep_as_it_is_long_does_not_end_the_console(depth: int) -> None:
    """It ended the process, or failed a page: fastavro reads by recursion in C."""
    schema = RegisteredSchema("AVRO", json.dumps({"type": "array", "items": NODE}), {})
    with pytest.raises(NotOfSchema, match="names itself"):
        decoded(schema, b"\x02" + b"\x02" * depth + b"\0\0")
    assert json.loads(decoded(schema, b"\x02\x02\0\0")) == [{"next": {"next": None}}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "map", "values": {"type": "array", "items": EMPTY}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "one", "type": EMPTY},
                {"name": "all", "type": ["null", {"type": "array", "items": "E"}]},
            ],
        },
    ],
)
def test_ten_bytes_that_announce_any_number_of_nothing_are_not_read(schema: Any) -> None:
    data = b"\xff" * 7 + b"\x01\0"
    with pytest.raises(NotOfSchema, match="take no bytes"):
        decoded(RegisteredSchema("AVRO", json.dumps(schema), {}), data)
