"""Random messages, made from the declarations in `wire`, at the boundaries more often than not.

`words` are the values that a subject gives to fields of some names: a group that exists leads a
handler further than a random one.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from tools.fuzz.batches import some_batch
from wire import types
from wire.message import Message
from wire.schema import Field, fields_of

#: Makes a value for a field, or for an element of its array.
Word = Callable[[Random], Any]
#: By a field's name, or by its struct's and its own: `TopicProduceData.name`.
Words = Mapping[str, Word]

_SIZES = (127, 128, 249, 3000)
_TEXTS = ("", "a", "é" * 64, "\0", " ", ".", "..", "a/b", *("x" * size for size in _SIZES))
#: Tags that no schema has, so the decoder must keep them as they are.
_UNKNOWN_TAGS = (1000, 1001, 2**31 - 2)
#: An array of so many elements is decoded in a thread.
_MANY = 2500


def message(random: Random, declared: type[Message], version: int, words: Words) -> Any:
    """Return a message that can be encoded at `version`."""
    flexible = declared.flexible_since is not None and version >= declared.flexible_since
    return _struct(random, declared, version, flexible, words)


def _struct(random: Random, declared: Any, version: int, flexible: bool, words: Words) -> Any:
    fields = {
        field.name: _field(random, declared.__name__, field, version, flexible, words)
        for field in fields_of(declared)
        if version in field.versions
    }
    made = declared(**fields)
    if flexible and random.random() < 0.03:
        made.unknown_tags = ((random.choice(_UNKNOWN_TAGS), random.randbytes(random.randrange(4))),)
    return made


def _field(
    random: Random, struct: str, field: Field, version: int, flexible: bool, words: Words
) -> Any:
    if version in field.nullable and random.random() < 0.15:
        return None
    word = words.get(f"{struct}.{field.name}") or words.get(field.name)
    return _value(random, field.type, word, version, flexible, words)


def _value(
    random: Random,
    kind: types.WireType,
    word: Word | None,
    version: int,
    flexible: bool,
    words: Words,
) -> Any:
    match kind:
        case types.Array():
            count = random.choice((0, 1, 1, 1, 2, 3))
            if isinstance(kind.element, types.Scalar) and random.random() < 0.002:
                count = _MANY
            return [
                _value(random, kind.element, word, version, flexible, words) for _ in range(count)
            ]
        case types.Nested():
            return _struct(random, kind.struct, version, flexible, words)
    if word is not None and random.random() < 0.9:
        return word(random)
    return _simple(random, kind)


def _simple(random: Random, kind: types.WireType) -> Any:
    match kind:
        case types.Scalar():
            return _number(random, kind)
        case types.Uuid():
            return random.choice((UUID(int=0), UUID(int=1), UUID(int=random.getrandbits(128))))
        case types.String():
            return text(random)
        case types.RecordBytes():
            return some_batch(random)
        case types.Bytes():
            return random.randbytes(random.choice((0, 1, 2, 16, 127, 128)))
    raise TypeError(f"no values for {kind!r}")


def text(random: Random) -> str:
    """Return a text, as likely as not one that something may stumble over."""
    if random.random() < 0.5:
        return random.choice(_TEXTS)
    return "".join(random.choices(string.ascii_letters + "-_. ", k=random.randrange(12)))


def _number(random: Random, kind: types.Scalar) -> Any:
    if kind.code == "?":
        return random.random() < 0.5
    if kind.code == "d":
        return random.choice((0.0, -1.0, 1e308, float("inf"), random.random()))
    low, high = kind.low, kind.high
    edges = (0, 1, max(low, -1), max(low, -2), low, high)
    return random.choice((*edges, random.randint(low, high), random.randint(0, 9)))
