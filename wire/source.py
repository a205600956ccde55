"""Python text under construction, from declarations: what decoders and encoders have in common.

The text is straight-line code: loops over arrays only, nested structs in place, fields of fixed
width read and written in runs by one struct format. It is built from our own declarations, never
from input. It interprets no schema and calls itself nowhere, so hostile input cannot make it
recurse. `wire.decoder` and `wire.encoder` write the text of one (message, version); constructors
are written here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from wire import types
from wire.schema import Field, fields_of

#: Deeper declarations are refused: far above Kafka's, far below Python's limit for nested blocks.
DEPTH_MAX = 8


class Source:
    """Python text under construction, and the constants it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.constants: dict[str, Any] = {}
        self._named: dict[tuple[str, Any], str] = {}
        self._count = 0

    def emit(self, line: str) -> None:
        """Add a line at the present depth."""
        self.lines.append("    " * self.depth + line)

    def fresh(self, prefix: str) -> str:
        """Return a variable name that the text uses nowhere else."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, prefix: str, key: Any, value: Any) -> str:
        """Return the name of a constant: the same for the same prefix and key."""
        name = self._named.get((prefix, key))
        if name is None:
            name = self._named[prefix, key] = f"{prefix}{len(self._named)}"
            self.constants[name] = value
        return name

    def struct_method(self, method: str, codes: str) -> str:
        """Return the name of a bound method of the big-endian struct format `codes`."""
        return self.constant(method[0].upper(), codes, getattr(struct.Struct(f">{codes}"), method))

    def function(self, head: str, label: str) -> Callable[..., Any]:
        """Compile the lines as the body of the function `head`; tracebacks say `label`."""
        text = "\n".join([f"def {head}:", *self.lines, ""])
        # Constants are globals of the function: it finds them without a closure.
        scope = dict(self.constants)
        # The lines are made of declarations of ours: no byte of a request is among them.
        exec(compile(text, f"<{label}>", "exec"), scope)  # noqa: S102  # as said
        made: Callable[..., Any] = scope[head.partition("(")[0]]
        return made

    def default(self, field: Field) -> str:
        """Return an expression for the default of a field; a list or a struct is new each time.

        The lines that make a struct are emitted here, in front of the expression.
        """
        default = field.default
        if isinstance(default, type):
            return self.empty_struct(default)
        if isinstance(field.type, types.Uuid):
            return self.constant("Z", default, default)
        return repr(default)

    def empty_struct(self, declared: Any) -> str:
        """Emit the making of a struct with all its defaults; return the name of its variable."""
        # Without __init__: its keyword arguments cost more than the attributes do.
        self.constants["new"] = object.__new__
        var = self.fresh("d")
        self.emit(f"{var} = new({self.constant('C', declared, declared)})")
        for field in fields_of(declared):
            self.emit(f"{var}.{field.name} = {self.default(field)}")
        self.emit(f"{var}.unknown_tags = ()")
        return var


def is_flexible(message: Any, version: int) -> bool:
    """Return whether a version has compact lengths and tagged fields (KIP-482)."""
    return message.flexible_since is not None and version >= message.flexible_since


def has_records(declared: Any, version: int) -> bool:
    """Return whether a struct holds record batches, in itself or further down."""
    return any(
        _holds_records(f.type, version) for f in fields_of(declared) if version in f.versions
    )


def _holds_records(wire_type: types.WireType, version: int) -> bool:
    if isinstance(wire_type, types.Array):
        return _holds_records(wire_type.element, version)
    if isinstance(wire_type, types.Nested):
        return has_records(wire_type.struct, version)
    return isinstance(wire_type, types.RecordBytes)


def size_min(wire_type: types.WireType, version: int, flexible: bool) -> int:
    """Return the fewest bytes a value can take.

    A decoder multiplies a count with it and compares the product with the bytes that remain,
    before it allocates anything.
    """
    match wire_type:
        case types.Scalar():
            return wire_type.size_bytes
        case types.Uuid():
            return 16
        case types.String():
            return 1 if flexible else 2
        case types.Bytes() | types.Array():
            return 1 if flexible else 4
        case types.Nested():
            return _struct_size_min(wire_type.struct, version, flexible)
    raise TypeError(f"{wire_type!r} has no size")


def _struct_size_min(declared: Any, version: int, flexible: bool) -> int:
    total = 1 if flexible else 0
    for field in fields_of(declared):
        # Tagged fields may all be left out.
        if version not in field.versions or version in field.tagged:
            continue
        if isinstance(field.type, types.Nested) and version in field.nullable:
            total += 1
        else:
            total += size_min(field.type, version, field.is_flexible(version, flexible))
    return total


def compile_constructor(declared: Any) -> Callable[..., None]:
    """Return `__init__(self, *, field=default, ..., unknown_tags=())` for a struct."""
    source = Source()
    source.constants["MISSING"] = object()
    parameters = ["self", "*"]
    for field in fields_of(declared):
        if isinstance(field.default, list | type):
            # A new object for each message: made in the body, not once with the function.
            parameters.append(f"{field.name}=MISSING")
            source.emit(f"if {field.name} is MISSING:")
            source.depth += 1
            source.emit(f"{field.name} = {source.default(field)}")
            source.depth -= 1
        else:
            parameters.append(f"{field.name}={source.default(field)}")
        source.emit(f"self.{field.name} = {field.name}")
    source.emit("self.unknown_tags = unknown_tags")
    head = f"__init__({', '.join([*parameters, 'unknown_tags=()'])})"
    return source.function(head, f"{declared.__name__}()")
