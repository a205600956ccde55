"""Why a message cannot be encoded: walks the declarations, after an encoder has failed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from wire import types
from wire.errors import WireError
from wire.schema import Field, fields_of


def unencodable(message: Any, version: int, error: Exception) -> WireError:
    """Return the WireError that names the field at fault, or repeats the encoder's error."""
    found = _in_struct(type(message), message, version, "")
    reason = found or str(error) or type(error).__name__
    return WireError(f"{type(message).__name__} v{version} cannot be encoded: {reason}")


def _in_struct(declared: Any, value: Any, version: int, path: str) -> str | None:
    if type(value) is not declared:
        return f"{path or 'it'} is a {type(value).__name__}, not a {declared.__name__}"
    for field in fields_of(declared):
        where = f"{path}.{field.name}" if path else field.name
        if not hasattr(value, field.name):
            return f"{where} is not set"
        found = _in_field(field, getattr(value, field.name), version, where)
        if found:
            return found
    return None


def _in_field(field: Field, value: Any, version: int, where: str) -> str | None:
    if version not in field.versions:
        default = field.default() if isinstance(field.default, type) else field.default
        # As the encoder: an ignorable value is dropped silently where its field does not exist.
        if field.ignorable or value == default:
            return None
        return f"{where} is not in this version, but set to {value!r}"
    if value is None:
        return (
            None if version in field.nullable else f"{where} is None, which this version cannot say"
        )
    return _in_value(field.type, value, version, where)


def _in_value(kind: types.WireType, value: Any, version: int, where: str) -> str | None:
    match kind:
        # `struct` takes any number for these two, so there are no bounds to name.
        case types.Scalar(code="d" | "?"):
            fits = isinstance(value, int | float)
            return None if fits else f"{where} is {value!r}, not a {kind.name}"
        case types.Scalar():
            fits = isinstance(value, int) and kind.low <= value <= kind.high
            return None if fits else f"{where} is {value!r}, not an {kind.name}"
        case types.String():
            return _in_string(value, where)
        case types.Array():
            return _in_array(kind, value, version, where)
        case types.Nested():
            return _in_struct(kind.struct, value, version, where)
        case types.Uuid():
            return None if isinstance(value, UUID) else f"{where} is {value!r}, not a UUID"
    return _in_bytes(value, where)


def _in_string(value: Any, where: str) -> str | None:
    if not isinstance(value, str):
        return f"{where} is {value!r}, not a string"
    # Half a surrogate pair is counted here, and refused by the next rule.
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > types.STRING_BYTES_MAX:
        return f"{where} has {size} bytes, more than {types.STRING_BYTES_MAX}"
    if any("\ud800" <= character <= "\udfff" for character in value):
        return f"{where} is {value!r}, which is not text in UTF-8"
    return None


def _in_array(kind: types.Array, value: Any, version: int, where: str) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{where} is {value!r}, not a list"
    for index, element in enumerate(value):
        found = _in_value(kind.element, element, version, f"{where}[{index}]")
        if found:
            return found
    return None


def _in_bytes(value: Any, where: str) -> str | None:
    # Record batches may be sent as several buffers, which follow each other.
    buffers = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(buffer, bytes | bytearray | memoryview) for buffer in buffers):
        return None
    return f"{where} is {value!r}, not bytes"
