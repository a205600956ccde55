"""Decodes keys and values for the console's pages: by a registered schema, else as plain bytes.

Confluent's format of bytes that name a schema (`decode`):

    0   1 byte    the number 0
    1   4 bytes   the schema's id, big-endian
    5             Protobuf only: the path to the message type, a count and as many indexes, all of
                  them zigzag varints; a count of 0 stands for the path [0]
                  the data, encoded by the schema
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

from magnetar.client.readable import printable
from magnetar.console.avro_schemas import RECURSIVE_BYTES_MAX, has_free_elements, names_itself
from magnetar.console.payload import Payload, payload
from magnetar.console.registry import PROTOBUF, NoSchema, RegisteredSchema, Registry

_MAGIC = 0
_HEADER_BYTES = 5
_INDEXES_MAX = 32
_SCHEMAS_PARSED = 200


class NotOfSchema(Exception):
    """The bytes do not match their schema, or the schema cannot be used."""


class Decoder:
    """Decodes bytes. Without a registry, all bytes are treated as bytes without a schema."""

    def __init__(self, registry: Registry | None) -> None:
        self._registry = registry

    def decode(self, data: bytes | None) -> Payload:
        """Return a text for people to read.

        Bytes that cannot be decoded are returned plain, with a note that says why.
        """
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
    """Return the data as indented JSON. Raises NotOfSchema."""
    if schema.kind == PROTOBUF:
        return _protobuf(schema, data)
    if schema.kind == "AVRO":
        return _avro(schema, data)
    found = payload(data)
    if found.kind != "json":
        raise NotOfSchema("the data is not JSON")
    return found.text


def _names_schema(data: bytes) -> bool:
    return len(data) >= _HEADER_BYTES and data[0] == _MAGIC


def _avro(schema: RegisteredSchema, data: bytes) -> str:
    from fastavro import schemaless_reader
    from fastavro.schema import SchemaParseException

    try:
        parsed, is_recursive = _avro_schema(schema.text, tuple(schema.references.values()))
        if is_recursive and len(data) > RECURSIVE_BYTES_MAX:
            raise NotOfSchema(
                f"it names itself: at most {RECURSIVE_BYTES_MAX} bytes are read by such a schema"
            )
        value = schemaless_reader(io.BytesIO(data), parsed, None)
        return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    except SchemaParseException as error:
        raise NotOfSchema(f"the schema is damaged: {error}") from None
    # fastavro has no error of its own for data that does not match: it raises any of these.
    except (
        *(ArithmeticError, EOFError, LookupError, TypeError, ValueError),
        *(MemoryError, RecursionError),
    ) as error:
        raise NotOfSchema(f"the data does not match it ({type(error).__name__}: {error})") from None


@lru_cache(maxsize=_SCHEMAS_PARSED)
def _avro_schema(text: str, references: Sequence[str]) -> tuple[Any, bool]:
    """Return the schema, and whether a type is within itself. Raises NotOfSchema."""
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    for each in references:
        parse_schema(json.loads(each), named_schemas=named)
    parsed = parse_schema(json.loads(text), named_schemas=named)
    parts = [parsed, *named.values()]
    if any(has_free_elements(each, named) for each in parts):
        raise NotOfSchema("it has an array of elements that take no bytes")
    return parsed, any(map(names_itself, parts))


def _plain(value: Any) -> str:
    """Return as text a value that JSON has no type for: bytes, a time, a decimal or a UUID."""
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
        raise NotOfSchema("the data does not match it") from None
    except (Base64Error, KeyError, LookupError, SerializeToJsonError, TypeError) as error:
        raise NotOfSchema(f"the schema cannot be used: {error}") from None


#: Protobuf's own files, google/protobuf/*.proto. Schemas may import them without registering them.
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
    """Add Protobuf's own files to the pool."""
    for name in _WELL_KNOWN:
        module = import_module(f"google.protobuf.{name}_pb2")
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the path to the message type, and the position at which the message begins.

    Raises NotOfSchema.
    """
    count, position = _zigzag(data, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= _INDEXES_MAX:
        raise NotOfSchema(f"the path to the message type has {count} indexes")
    found = []
    for _ in range(count):
        index, position = _zigzag(data, position)
        found.append(index)
    if min(found) < 0:
        raise NotOfSchema("the path to the message type has a negative index")
    return found, position


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise NotOfSchema("the path to the message type is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
