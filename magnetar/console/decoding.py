"""Keys and values on their way to a page: through their schema if they name one, else as bytes.

Confluent's format of bytes with a schema: 0, the schema's id (4 bytes), and the data. Protobuf has
the way to the message type in between: a count and indexes, zigzag varints; a single 0 for [0].
"""

from __future__ import annotations

import base64
import io
import json
from binascii import Error as Base64Error
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from magnetar.console.payload import Payload, payload, printable
from magnetar.console.registry import PROTOBUF, NoSchema, RegisteredSchema, Registry

_MAGIC = 0
_HEADER_BYTES = 5
_INDEXES_MAX = 32
_SCHEMAS_PARSED = 200


class NotOfSchema(Exception):
    """The bytes are not what their schema says, or the schema is of no use."""


class Decoder:
    """Decodes bytes; without a registry none of them has a schema."""

    def __init__(self, registry: Registry | None) -> None:
        self._registry = registry

    def decode(self, data: bytes | None) -> Payload:
        """Return what a person reads. What cannot be decoded is shown as it is, with the reason."""
        plain = payload(data)
        if self._registry is None or data is None or not _names_schema(data):
            return plain
        schema_id = int.from_bytes(data[1:_HEADER_BYTES])
        try:
            schema = self._registry.schema(schema_id)
            text = decoded(schema, data[_HEADER_BYTES:])
        except (NoSchema, NotOfSchema) as failure:
            note = f"Schema {schema_id}: {failure}"
            return Payload(plain.kind, plain.text, plain.size_bytes, plain.is_cut, note)
        return Payload(schema.kind.lower(), printable(text), len(data), note=f"Schema {schema_id}")


def decoded(schema: RegisteredSchema, data: bytes) -> str:
    """Return the data as JSON in lines. NotOfSchema: it cannot be."""
    if schema.kind == PROTOBUF:
        return _protobuf(schema, data)
    if schema.kind == "AVRO":
        return _avro(schema, data)
    found = payload(data)
    if found.kind != "json":
        raise NotOfSchema("the data is no JSON")
    return found.text


def _names_schema(data: bytes) -> bool:
    return len(data) >= _HEADER_BYTES and data[0] == _MAGIC


def _avro(schema: RegisteredSchema, data: bytes) -> str:
    from fastavro import schemaless_reader
    from fastavro.schema import SchemaParseException

    try:
        parsed = _avro_schema(schema.text, tuple(schema.references.values()))
        value = schemaless_reader(io.BytesIO(data), parsed, None)
    except SchemaParseException as error:
        raise NotOfSchema(f"the schema is damaged: {error}") from None
    # What fastavro raises for data of another schema is whatever its reading meets.
    except (ArithmeticError, EOFError, LookupError, TypeError, ValueError) as error:
        raise NotOfSchema(f"the data is not of it ({type(error).__name__}: {error})") from None
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


@lru_cache(maxsize=_SCHEMAS_PARSED)
def _avro_schema(text: str, references: Sequence[str]) -> Any:
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    for each in references:
        parse_schema(json.loads(each), named_schemas=named)
    return parse_schema(json.loads(text), named_schemas=named)


def _plain(value: Any) -> str:
    """Return what JSON has no words for: bytes, times, decimals, UUIDs."""
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def _protobuf(schema: RegisteredSchema, data: bytes) -> str:
    from google.protobuf.json_format import MessageToJson, SerializeToJsonError
    from google.protobuf.message import DecodeError

    indexes, start = _indexes(data)
    try:
        message_class = _protobuf_class(
            schema.text, tuple(schema.references.items()), tuple(indexes)
        )
        message = message_class.FromString(data[start:])
        return MessageToJson(message, preserving_proto_field_name=True, ensure_ascii=False)
    except DecodeError:
        raise NotOfSchema("the data is not of it") from None
    except (Base64Error, KeyError, LookupError, SerializeToJsonError, TypeError) as error:
        raise NotOfSchema(f"the schema is of no use: {error}") from None


#: The files of Protobuf's own that schemas import without registering them.
_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")


@lru_cache(maxsize=_SCHEMAS_PARSED)
def _protobuf_class(
    text: str, references: Sequence[tuple[str, str]], indexes: Sequence[int]
) -> Any:
    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message_factory import GetMessageClass

    pool = descriptor_pool.DescriptorPool()
    _add_well_known(pool)
    for name, each in references:
        inner = FileDescriptorProto.FromString(base64.b64decode(each))
        inner.name = name
        pool.Add(inner)
    file = FileDescriptorProto.FromString(base64.b64decode(text))
    file.name = file.name or "default"
    pool.Add(file)
    first, *rest = indexes
    descriptor = file.message_type[first]
    name = descriptor.name
    for index in rest:
        descriptor = descriptor.nested_type[index]
        name += f".{descriptor.name}"
    full = f"{file.package}.{name}" if file.package else name
    return cast("Any", GetMessageClass(pool.FindMessageTypeByName(full)))


def _add_well_known(pool: Any) -> None:
    """Add the files that schemas import without registering them."""
    for name in _WELL_KNOWN:
        module = import_module(f"google.protobuf.{name}_pb2")
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the way to the message type, and where the message begins. NotOfSchema: no way."""
    count, position = _zigzag(data, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= _INDEXES_MAX:
        raise NotOfSchema(f"a way of {count} indexes to the message type")
    found = []
    for _ in range(count):
        index, position = _zigzag(data, position)
        found.append(index)
    if min(found) < 0:
        raise NotOfSchema("a negative index of a message type")
    return found, position


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise NotOfSchema("the way to the message type is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
