"""Messages of the Kafka protocol, declared once for all versions.

    class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
        transactional_id: str = ""
        producer_id: int64 = 0
        ...

A field names its type; its right-hand side is its default, or `in_versions(...)` where versions
differ. A declaration costs nothing until its first use: the first `decode` or `encode` of a
(message, version) compiles straight-line Python (`wire.decoder`, `wire.encoder`), which is kept.

Invariant: decoding raises `WireError` and nothing else, whatever the bytes; it allocates only in
proportion to the bytes that are really there. Tagged fields with unknown tags are kept in
`unknown_tags` and written again, as Kafka does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Self, dataclass_transform
from uuid import UUID

from wire.errors import WireError
from wire.schema import MISSING, VersionRange, in_versions
from wire.types import (
    ZERO_UUID,
    Buffer,
    RecordBuffers,
    Records,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint16,
    uint32,
)

__all__ = [
    "UUID",
    "ZERO_UUID",
    "Buffer",
    "Message",
    "MetadataRecord",
    "RecordBuffers",
    "RecordKey",
    "RecordValue",
    "Records",
    "Struct",
    "float64",
    "in_versions",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
]


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns the annotations of a class into its slots and keeps the right-hand sides aside."""

    _declared: dict[str, tuple[Any, Any]]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        declared: dict[str, tuple[Any, Any]] = {}
        # Message and its kinds declare class variables, not fields.
        if "__slots__" not in namespace:
            for field, annotation in namespace.get("__annotations__", {}).items():
                # Popped: Python refuses a slot whose name is a class attribute too.
                declared[field] = (annotation, namespace.pop(field, MISSING))
            namespace["__slots__"] = tuple(declared)
        cls = super().__new__(mcs, name, bases, namespace, **options)
        cls._declared = declared
        return cls


class Struct(metaclass=StructType):
    """A part of a message. Its constructor takes every field by name, or the schema's default."""

    #: (tag, bytes) of tagged fields this schema does not know, by ascending tag.
    unknown_tags: tuple[tuple[int, bytes], ...] = ()

    def __init__(self, **fields: Any) -> None:
        from wire.source import compile_constructor

        # The compiled constructor takes this one's place at the first use of the class.
        cls = type(self)
        cls.__init__ = compile_constructor(cls)  # type: ignore[method-assign]  # once, then gone
        cls.__init__(self, **fields)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name) for name in type(self)._declared
        ) and (self.unknown_tags == other.unknown_tags)

    __hash__ = None  # type: ignore[assignment]  # mutable, so unhashable, as a dataclass is

    def __repr__(self) -> str:
        shown = [f"{name}={_shown(getattr(self, name))}" for name in type(self)._declared]
        if self.unknown_tags:
            shown.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def parts_of(struct: Struct) -> list[object]:
    """Return what the fields of `struct` hold: the elements of its arrays, and its structs."""
    parts: list[object] = []
    for name in type(struct)._declared:
        value = getattr(struct, name)
        if isinstance(value, list):
            parts += value
        elif isinstance(value, Struct):
            parts.append(value)
    return parts


def _shown(value: object) -> str:
    if isinstance(value, memoryview | bytearray):
        return f"<{len(value)} bytes>"
    return repr(value)


class _ByVersion(dict[int, Callable[..., Any]]):
    """The decoders or encoders of a message by version, each compiled on its first use."""

    __slots__ = ("_compile",)

    def __init__(self, compile_version: Callable[[int], Callable[..., Any]]) -> None:
        self._compile = compile_version

    # A dictionary's own hook: a version that is compiled already costs no call.
    def __missing__(self, version: int) -> Callable[..., Any]:
        compiled = self[version] = self._compile(version)
        return compiled


class Message(Struct):
    """A request, a response, a header or a stored record: encoded and decoded as a whole."""

    __slots__ = ()

    #: The API's key; -1 where there is none.
    api_key: ClassVar[int] = -1
    #: The versions declared, both inclusive.
    min_version: ClassVar[int] = 0
    max_version: ClassVar[int] = -1
    #: The first version with compact lengths and tagged fields, or None.
    flexible_since: ClassVar[int | None] = None
    #: The version of its header, before and from `flexible_since` on.
    _header_versions: ClassVar[tuple[int, int]] = (0, 0)
    _decoders: ClassVar[Mapping[int, Callable[..., tuple[Any, int, int]]]]
    _encoders: ClassVar[Mapping[int, Callable[..., list[Buffer]]]]

    def __init_subclass__(
        cls, *, api_key: int = -1, versions: str = "none", flexible: str = "none"
    ) -> None:
        valid = VersionRange.parse(versions)
        cls.api_key = api_key
        cls.min_version = valid.first
        cls.max_version = valid.last
        cls.flexible_since = None if flexible == "none" else int(flexible.rstrip("+"))
        cls._decoders = _ByVersion(cls._compile_decoder)
        cls._encoders = _ByVersion(cls._compile_encoder)
        cls._header_versions = (1, 2) if cls.__name__.endswith("Request") else (0, 1)
        # KIP-511: no client knows the broker's versions before it has read this response.
        if cls.__name__ == "ApiVersionsResponse":
            cls._header_versions = (0, 0)

    @classmethod
    def header_version(cls, version: int) -> int:
        """Return the version of the header that goes before this request or response.

        ApiVersionsResponse always has header 0, so that a client which knows nothing of the broker
        can read it (KIP-511).
        """
        flexible = cls.flexible_since is not None and version >= cls.flexible_since
        return cls._header_versions[flexible]

    @classmethod
    def decode(cls, buffer: Buffer, version: int) -> Self:
        """Read one message that fills `buffer`. Raises WireError, also for bytes left over."""
        message, end, _ = cls._decoders[version](buffer, 0)
        if end != len(buffer):
            raise WireError(
                f"{cls.__name__} v{version} ends at byte {end}, {len(buffer) - end} bytes follow"
            )
        return message  # type: ignore[no-any-return]  # compiled code is not seen by mypy

    @classmethod
    def decode_from(cls, buffer: Buffer, version: int, offset: int = 0) -> tuple[Self, int]:
        """Read one message at `offset`; return it and the offset behind it."""
        message, end, _ = cls._decoders[version](buffer, offset)
        return message, end

    def encode(self, version: int) -> bytes:
        """Return the message's bytes. Raises WireError, naming the field that cannot be sent."""
        parts = self._encoders[version](self)
        first = parts[0]
        return first if len(parts) == 1 and type(first) is bytes else b"".join(parts)

    @classmethod
    def decoder(cls, version: int) -> Callable[..., tuple[Self, int, int]]:
        """Return the compiled function behind `decode_from`, for a caller that keeps it.

        `decode(buffer, offset, elements_max)`; without the last one, `wire.decoder` limits them. It
        returns the number of elements too.
        """
        return cls._decoders[version]

    @classmethod
    def encoder(cls, version: int) -> Callable[..., list[Buffer]]:
        """Return the function that encodes a message in pieces, in order, for a gathering write.

        `encode(message, elements_max)`; without the last one, there is no limit.
        Record batches are pieces of their own, not copied, unless they are shorter than a kilobyte.
        """
        return cls._encoders[version]

    @classmethod
    def _compile_decoder(cls, version: int) -> Callable[..., tuple[Any, int, int]]:
        # Here, so that the import of a message does not import the compiler: starts are fast.
        from wire.decoder import compile_decoder

        cls._check_version(version)
        return compile_decoder(cls, version)

    @classmethod
    def _compile_encoder(cls, version: int) -> Callable[..., list[Buffer]]:
        from wire.encoder import compile_encoder

        cls._check_version(version)
        return compile_encoder(cls, version)

    @classmethod
    def _check_version(cls, version: int) -> None:
        if not cls.min_version <= version <= cls.max_version:
            raise WireError(
                f"{cls.__name__} has versions {cls.min_version}-{cls.max_version}, not {version}"
            )


@cache
def response_class_of(request_class: type[Message]) -> type[Message]:
    """Return the response that is declared beside a request."""
    name = request_class.__name__.removesuffix("Request") + "Response"
    found: type[Message] = getattr(sys.modules[request_class.__module__], name)
    return found


class _TypedRecord(Message):
    """A part of a stored record, with the number of the record's type."""

    __slots__ = ()

    record_type: ClassVar[int] = -1

    def __init_subclass__(
        cls, *, record_type: int = -1, versions: str = "none", flexible: str = "none"
    ) -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.record_type = record_type


class RecordKey(_TypedRecord):
    """The key of a record in an internal topic: its first two bytes are its `record_type`."""

    __slots__ = ()


class RecordValue(_TypedRecord):
    """The value of a record in an internal topic: its first two bytes are its version."""

    __slots__ = ()


class MetadataRecord(_TypedRecord):
    """A record of a KRaft cluster's metadata log; a frame before it says its type and version."""

    __slots__ = ()
