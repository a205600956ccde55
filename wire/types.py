"""The protocol's types, as mypy sees them (an `int16` is an `int`) and as the compiler sees them.

Each type object says how a value lies on the wire; none of them reads or writes. Source: the
protocol guide, "Protocol Primitive Types".
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence, Sized
from typing import Annotated, Any
from uuid import UUID

#: What Kafka sends for "no id": the all-zero UUID.
ZERO_UUID = UUID(int=0)

#: The longest string, in bytes of UTF-8, compact or not (Kafka refuses longer ones in both forms).
STRING_BYTES_MAX = 0x7FFF
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: From here on a string is work that counts beside the elements of arrays: it takes as long to read
#: or write as some elements.
LONG_STRING_BYTES = 1024


def uuid_text(value: UUID) -> str:
    """Return a UUID as Kafka shows it: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


class WireType:
    """A type of the protocol."""

    __slots__ = ()


class Scalar(WireType):
    """A number of fixed width: `code` is its letter in the struct module."""

    __slots__ = ("code", "high", "low", "name", "size_bytes")

    def __init__(self, name: str, code: str, size_bytes: int, low: int, high: int) -> None:
        self.name = name
        self.code = code
        self.size_bytes = size_bytes
        self.low = low
        self.high = high


class Uuid(WireType):
    """16 bytes, most significant first."""

    __slots__ = ()


class String(WireType):
    """UTF-8 after its length: int16, or in a flexible version an unsigned varint of length + 1."""

    __slots__ = ()


class Bytes(WireType):
    """Bytes after their length: int32, or in a flexible version a varint of length + 1."""

    __slots__ = ()


class RecordBytes(Bytes):
    """As `Bytes`, but record batches: decoded to a memoryview of the input, never copied."""

    __slots__ = ()


class Array(WireType):
    """Elements after their count: int32, or in a flexible version a varint of count + 1."""

    __slots__ = ("element",)

    def __init__(self, element: WireType) -> None:
        self.element = element


class Nested(WireType):
    """The fields of a struct, one after the other; a nullable one follows a byte."""

    __slots__ = ("struct",)

    def __init__(self, struct: Any) -> None:
        self.struct = struct


def _integer(name: str, code: str, bits: int, *, signed: bool = True) -> Scalar:
    low = -(1 << bits - 1) if signed else 0
    return Scalar(name, code, bits // 8, low, low + (1 << bits) - 1)


BOOL = Scalar("bool", "?", 1, 0, 1)
FLOAT64 = Scalar("float64", "d", 8, 0, 0)
UUID_TYPE = Uuid()
STRING = String()
BYTES = Bytes()
RECORDS = RecordBytes()

int8 = Annotated[int, _integer("int8", "b", 8)]
int16 = Annotated[int, _integer("int16", "h", 16)]
int32 = Annotated[int, _integer("int32", "i", 32)]
int64 = Annotated[int, _integer("int64", "q", 64)]
uint16 = Annotated[int, _integer("uint16", "H", 16, signed=False)]
uint32 = Annotated[int, _integer("uint32", "I", 32, signed=False)]
float64 = Annotated[float, FLOAT64]

#: Anything that lies in memory as bytes.
Buffer = bytes | bytearray | memoryview

#: Record batches. Decoding gives a memoryview of the request: not copied, not decoded.
Records = Annotated[bytes | bytearray | memoryview, RECORDS]

#: Record batches that go out: one buffer, or several that follow each other, none of them copied.
#: Or what only says how many bytes it stands for, as a part of a file: it is passed on as it is.
RecordBuffers = Annotated[
    bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview] | Sized, RECORDS
]
