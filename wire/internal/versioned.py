"""Keys, values and opaque fields that begin with two bytes saying how to read the rest.

A value (and ConsumerProtocol*) begins with its version; a key with its record type, which tells
what kind of record it belongs to. Bytes 0-1: int16, big-endian; then the message.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from wire.errors import WireError
from wire.message import Buffer, Message, RecordKey

_PREFIX = struct.Struct(">h")

M = TypeVar("M", bound=Message)


def encode_versioned(message: Message, version: int | None = None) -> bytes:
    """Return the bytes of a key or value. `version` None: the newest; a key has one, 0."""
    if isinstance(message, RecordKey):
        return _PREFIX.pack(message.record_type) + message.encode(message.max_version)
    if version is None:
        version = message.max_version
    return _PREFIX.pack(version) + message.encode(version)


def peek_version(buffer: Buffer) -> int:
    """Return a value's version, or a key's record type. Raises WireError below two bytes."""
    if len(buffer) < _PREFIX.size:
        raise WireError(f"{len(buffer)} bytes hold no version")
    version: int = _PREFIX.unpack_from(buffer)[0]
    return version


def decode_versioned(cls: type[M], buffer: Buffer) -> M:
    """Read a key or value of a known kind. Raises WireError for another kind or version."""
    version = peek_version(buffer)
    if issubclass(cls, RecordKey):
        if version != cls.record_type:
            raise WireError(f"{cls.__name__} has record type {cls.record_type}, not {version}")
        version = cls.max_version
    message, end = cls.decode_from(buffer, version, _PREFIX.size)
    if end != len(buffer):
        raise WireError(f"{cls.__name__} v{version}: {len(buffer) - end} bytes follow it")
    return message


def decode_compatible(cls: type[M], buffer: Buffer, elements_max: int | None = None) -> M:
    """Read ConsumerProtocol*: a version newer than ours is read as our newest, the rest left alone.

    So clients may add fields at the end without asking the brokers. Raises WireError, also where
    the arrays have more elements than `elements_max`.
    """
    version = min(peek_version(buffer), cls.max_version)
    decode = cls.decoder(version)
    if elements_max is None:
        return decode(buffer, _PREFIX.size)[0]
    return decode(buffer, _PREFIX.size, elements_max)[0]
