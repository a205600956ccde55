"""The fields of a struct in wire order, and version ranges: read from a message's declaration.

A struct's annotations are evaluated when the struct is first used, not when its module is imported.
"""

from __future__ import annotations

import sys
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from wire import types

VERSION_MAX = 0x7FFF
#: Stands for the right-hand side of a field that is declared without one, and its default.
MISSING: Any = object()


class VersionRange:
    """The versions from `first` to `last`, both inclusive; empty when first > last."""

    __slots__ = ("first", "last")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read Kafka's notation: `3`, `0-12`, `13+`, `none`."""
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __and__(self, other: VersionRange) -> VersionRange:
        return VersionRange(max(self.first, other.first), min(self.last, other.last))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VersionRange):
            return NotImplemented
        # All empty ranges mean the same: no version.
        return (self.empty and other.empty) or (self.first, self.last) == (other.first, other.last)

    def __repr__(self) -> str:
        return f"VersionRange({self.first}, {self.last})"

    @property
    def empty(self) -> bool:
        return self.first > self.last


NO_VERSION = VersionRange(0, -1)


class InVersions(NamedTuple):
    """What `in_versions` returns: the right-hand side of a field that differs between versions."""

    versions: str
    nullable: str | None
    tag: int | None
    tagged: str | None
    default: Any
    ignorable: bool
    flexible: str | None


def in_versions(
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    default: object = MISSING,
    ignorable: bool = False,
    flexible: str | None = None,
) -> Any:
    """Declare a field that differs between the versions of its message.

    `versions`: the versions that have the field.
    `nullable`: the versions in which the field may be None. By default all of `versions` if the
    field's type says `| None`, else none.
    `tag`: the number under which the versions in `tagged` (by default `versions`) send the field as
    a tagged field. A tagged field is sent only when its value is not the default.
    `default`: the value in a new struct, and in versions without the field. By default 0, "", b"",
    [], the zero UUID or an empty struct.
    `ignorable`: a version without the field drops its value silently. Otherwise a value other than
    the default is an error in such a version.
    `flexible`: the versions in which the field's lengths are compact, instead of the message's own.
    """
    return InVersions(versions, nullable, tag, tagged, default, ignorable, flexible)


class Field:
    """One field of a struct: its versions, its encoding, and its value where it is absent."""

    __slots__ = (
        "default",
        "flexible",
        "ignorable",
        "name",
        "nullable",
        "tag",
        "tagged",
        "type",
        "versions",
    )

    def __init__(self, name: str, annotation: Any, declared: Any) -> None:
        if not isinstance(declared, InVersions):
            declared = in_versions(default=declared)
        self.name = name
        self.type, optional = _wire_type(annotation)
        self.versions = VersionRange.parse(declared.versions)
        self.tag = declared.tag
        self.tagged = NO_VERSION
        if declared.tag is not None:
            self.tagged = VersionRange.parse(declared.tagged or declared.versions)
        self.nullable = self.versions if optional else NO_VERSION
        if declared.nullable is not None:
            # Kafka's schemas may name nullable versions in which the field does not exist.
            self.nullable = VersionRange.parse(declared.nullable) & self.versions
        self.ignorable = declared.ignorable
        # Only RequestHeader's client id has this: it keeps its old form in a flexible header.
        self.flexible = VersionRange.parse(declared.flexible) if declared.flexible else None
        #: None, a number, a string, bytes or a UUID. `[]` stands for a new list, the class of a
        #: struct for a new struct.
        self.default: Any = declared.default
        if declared.default is MISSING:
            self.default = default_of(self.type)

    @property
    def element_struct(self) -> Any:
        """The struct of which the field is a list; None for a field that is no list of structs."""
        if isinstance(self.type, types.Array) and isinstance(self.type.element, types.Nested):
            return self.type.element.struct
        return None

    def is_flexible(self, version: int, message_flexible: bool) -> bool:
        """Return whether lengths are compact: `message_flexible`, unless the field overrides it."""
        return message_flexible if self.flexible is None else version in self.flexible


def default_of(wire_type: types.WireType) -> Any:
    """Return the value of a field whose schema names no default."""
    match wire_type:
        case types.Scalar(code="?"):
            return False
        case types.Scalar(code="d"):
            return 0.0
        case types.Scalar():
            return 0
        case types.Uuid():
            return types.ZERO_UUID
        case types.String():
            return ""
        case types.Bytes():
            return b""
        case types.Array():
            return []
        case types.Nested():
            return wire_type.struct
    raise TypeError(f"no default for {wire_type!r}")


_PLAIN: dict[Any, types.WireType] = {
    bool: types.BOOL,
    str: types.STRING,
    bytes: types.BYTES,
    UUID: types.UUID_TYPE,
}


def _wire_type(annotation: Any) -> tuple[types.WireType, bool]:
    """Return the wire type that an annotation means, and whether the annotation allows None."""
    if get_origin(annotation) is Annotated:
        wire_type: types.WireType = annotation.__metadata__[0]
        return wire_type, False
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) != 1:
            raise TypeError(f"{annotation} is not a type of the protocol")
        return _wire_type(members[0])[0], True
    if get_origin(annotation) is list:
        element, optional = _wire_type(get_args(annotation)[0])
        if optional:
            raise TypeError(f"{annotation}: the protocol has no nullable elements")
        return types.Array(element), False
    if annotation in _PLAIN:
        return _PLAIN[annotation], False
    if hasattr(annotation, "_declared"):
        return types.Nested(annotation), False
    raise TypeError(f"{annotation} is not a type of the protocol")


def fields_of(struct: Any) -> tuple[Field, ...]:
    """Return the fields of a declared struct, in wire order. Each class is evaluated once."""
    # Not `getattr`: that would find the fields of a base class too.
    known: tuple[Field, ...] | None = struct.__dict__.get("_fields")
    if known is None:
        known = tuple(_evaluate(struct))
        struct._fields = known
    return known


def _evaluate(struct: Any) -> list[Field]:
    scope = vars(sys.modules[struct.__module__])
    fields = []
    for name, (annotation, declared) in struct._declared.items():
        if isinstance(annotation, str):
            # `eval` is safe here: the text comes from a class body of our own code.
            annotation = eval(annotation, scope)  # noqa: S307  # see above
        fields.append(Field(name, annotation, declared))
    return fields
