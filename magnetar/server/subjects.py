"""What a request is about, and what its answer refuses: read off the declarations of the messages.

One reader serves all APIs, in place of a rule in each handler. Topics are named in the elements of
lists that have "topic" in their names, and the names of fields with an error end with `error_code`.
Only the first elements of each list are looked at, so that a request that names 100,000 partitions
costs no more than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from wire.message import ZERO_UUID
from wire.schema import fields_of
from wire.types import Array, String

#: How many elements of a list are looked at.
_LOOKED_AT = 100
#: Fields that name a topic, in the elements of a list of topics. An id stands where the name, which
#: later versions leave out, is empty.
_NAMES, _ID = ("topic", "topic_name", "name"), "topic_id"


class _Readers(NamedTuple):
    """Where a struct has what is looked for: its own fields, and its lists of structs."""

    fields: tuple[str, ...]
    lists: tuple[tuple[str, _Readers], ...]


def topics_of(message: Any) -> Iterator[str | UUID]:
    """Yield the topics that a request or a response names, as often as it does."""
    kind: Any = type(message)
    for name, element in _topic_lists(kind):
        for each in islice(getattr(message, name) or (), _LOOKED_AT):
            topic = each if element is None else _topic(each, element)
            if topic:
                yield topic


def error_codes_of(message: Any) -> Iterator[int]:
    """Yield the error codes of a response, but 0."""
    kind: Any = type(message)
    return _codes(message, _error_readers(kind))


@cache
def _topic_lists(message: type) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """Return the lists of topics that a message has, with the fields that name one of them.

    None stands for elements that are names themselves.
    """
    found: list[tuple[str, tuple[str, ...] | None]] = []
    for field in fields_of(message):
        if "topic" not in field.name and field.name != "responses":
            continue
        element = field.element_struct
        if element is not None:
            names = {one.name for one in fields_of(element)}
            found.append((field.name, tuple(name for name in (*_NAMES, _ID) if name in names)))
        elif isinstance(field.type, Array) and isinstance(field.type.element, String):
            found.append((field.name, None))
    return tuple(found)


def _topic(each: Any, names: tuple[str, ...]) -> str | UUID | None:
    values = (getattr(each, name) for name in names)
    return next((value for value in values if value and value != ZERO_UUID), None)


@cache
def _error_readers(struct: type) -> _Readers:
    fields = fields_of(struct)
    elements = ((field.name, field.element_struct) for field in fields)
    lists = ((name, _error_readers(each)) for name, each in elements if each is not None)
    return _Readers(
        tuple(field.name for field in fields if field.name.endswith("error_code")),
        tuple((name, readers) for name, readers in lists if readers.fields or readers.lists),
    )


def _codes(struct: Any, readers: _Readers) -> Iterator[int]:
    for name in readers.fields:
        code = getattr(struct, name)
        if code:
            yield code
    for name, inner in readers.lists:
        for each in islice(getattr(struct, name) or (), _LOOKED_AT):
            yield from _codes(each, inner)
