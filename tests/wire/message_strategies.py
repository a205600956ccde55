"""Every declared message, and Hypothesis strategies derived from the declarations."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import wire.internal
import wire.messages
from tests.soak import SOAK
from wire import types
from wire.error_code import ErrorCode
from wire.message import Message
from wire.schema import Field, fields_of

#: Tags above this are in no schema, so the decoder must keep them as they are.
UNKNOWN_TAG_MIN = 1000
#: Java reads tags as int32, and keeps the largest for itself.
UNKNOWN_TAG_MAX = 0x7FFFFFFE


def few(examples: int) -> settings:
    """Settings for a test that is run for every message and version: few examples each."""
    return settings(
        max_examples=examples * SOAK,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def every_message() -> list[type[Message]]:
    """All declared messages, by module and name."""
    found: list[type[Message]] = []
    for package in (wire.messages, wire.internal):
        for module_info in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{module_info.name}")
            found += [
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and issubclass(value, Message)
                and value.__module__ == module.__name__
            ]
    return found


#: (message, version) for every version declared.
CASES = [
    (message, version)
    for message in every_message()
    for version in range(message.min_version, message.max_version + 1)
]


def case_id(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)}-bytes"
    return value.__name__ if isinstance(value, type) else f"v{value}"


@cache
def messages(message: Any, version: int, tame: bool = False) -> st.SearchStrategy[Any]:
    """Messages that can be encoded at `version`; fields it does not have keep their defaults.

    `tame`: no unknown tags, error codes that exist, and times that other libraries can express.
    """
    flexible = message.flexible_since is not None and version >= message.flexible_since
    return _structs(message, version, flexible, tame)


@cache
def _structs(declared: Any, version: int, flexible: bool, tame: bool) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        field.name: _field(field, version, flexible, tame)
        for field in fields_of(declared)
        if version in field.versions
    }
    if flexible and not tame:
        fields["unknown_tags"] = _UNKNOWN_TAGS
    return st.builds(declared, **fields)


_UNKNOWN_TAGS = st.dictionaries(
    st.integers(UNKNOWN_TAG_MIN, UNKNOWN_TAG_MAX), st.binary(max_size=3), max_size=2
).map(lambda tags: tuple(sorted(tags.items())))

#: Mostly short; sometimes long enough for a length of two bytes as a varint.
_TEXT = st.one_of(
    st.text(max_size=8),
    st.just("é" * 64),
    st.sampled_from(["x" * 126, "x" * 127, "x" * 128, "y" * 16383]),
)
#: What the other libraries know too.
_OLD_ERROR_CODES = [int(code) for code in ErrorCode if code <= ErrorCode.DUPLICATE_VOTER]

_BINARY = st.one_of(st.binary(max_size=8), st.sampled_from([b"z" * 127, b"z" * 128, b"r" * 1100]))


def _field(field: Field, version: int, flexible: bool, tame: bool) -> st.SearchStrategy[Any]:
    values = _values(field.type, version, flexible, tame, field.name)
    if version in field.nullable:
        return st.none() | values
    return values


def _values(
    kind: types.WireType, version: int, flexible: bool, tame: bool, name: str
) -> st.SearchStrategy[Any]:
    match kind:
        case types.Scalar():
            return _numbers(kind, tame, name)
        case types.Uuid():
            return st.uuids()
        case types.String():
            return _TEXT
        case types.Bytes():
            return _BINARY
        case types.Array():
            elements = _values(kind.element, version, flexible, tame, name)
            size = 3 if isinstance(kind.element, types.Scalar) else 2
            return st.lists(elements, max_size=size)
        case types.Nested():
            return _structs(kind.struct, version, flexible, tame)
    raise TypeError(f"no strategy for {kind!r}")


def _numbers(kind: types.Scalar, tame: bool, name: str) -> st.SearchStrategy[Any]:
    if kind.code == "?":
        return st.booleans()
    if kind.code == "d":
        return st.floats(allow_nan=False)
    if tame and "error_code" in name:
        return st.sampled_from(_OLD_ERROR_CODES)
    if tame and kind.code == "q":
        return st.integers(0, 1 << 41)
    return st.integers(kind.low, kind.high)
