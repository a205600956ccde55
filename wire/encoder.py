"""Encoders: one straight-line function for each (message, version). See `wire.source`.

The text trusts its message: a wrong one fails inside `struct`, `len` or `str.encode`, and only then
does `wire.diagnosis` look for the field at fault. What would not fail by itself is checked in the
text: a value in a field that the version does not have.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from wire import primitives, types
from wire.diagnosis import unencodable
from wire.errors import TooManyElements
from wire.schema import Field, fields_of
from wire.source import Source, is_flexible

#: Record batches shorter than this are copied into the piece before them: cheaper than one more.
COPIED_BYTES_MAX = 1024
#: So many pieces are joined before the next array: a piece of a few bytes takes forty more.
PIECES_MAX = 4096


def compile_encoder(message: Any, version: int) -> Callable[..., Any]:
    """Return `encode(message, elements_max=no limit) -> parts`.

    It raises `TooManyElements` where arrays of structs and strings have more, all in all. Each KB
    of a long string counts as one.
    """
    return _EncoderSource(message, version).build()


class _EncoderSource(Source):
    """The encoder of one message at one version."""

    def __init__(self, message: Any, version: int) -> None:
        super().__init__()
        self.message = message
        self.version = version
        self.flexible = is_flexible(message, version)
        self.sink = "w"
        self._is_sink_made = False
        self._codes = ""  # the pending run of fixed-width values
        self._values: list[str] = []
        self._pieces: list[str] = []  # pending expressions, each of bytes

    def build(self) -> Callable[..., Any]:
        label = f"{self.message.__name__} v{self.version}"

        def crowded(elements_max: int) -> TooManyElements:
            return TooManyElements(f"{label}: more than {elements_max} elements")

        self.constants |= {
            "TooManyElements": TooManyElements,
            "crowded": crowded,
            "ENCODE_ERRORS": (struct.error, AttributeError, TypeError, ValueError, OverflowError),
            "ONE_BYTE": primitives.ONE_BYTE,
            "join": b"".join,
            "scalars": primitives.scalars,
            "string_length": primitives.string_length,
            "tag_section": primitives.tag_section,
            "total": lambda buffers: sum(map(len, buffers)),
            "unencodable": unencodable,
            "uvarint": primitives.uvarint,
        }
        self.emit("parts = []")
        self.emit("left = elements_max")
        self.emit("try:")
        self.depth += 1
        self.struct(self.message, "m0")
        self.flush()
        self.depth -= 1
        self.emit("except TooManyElements:")
        self.emit("    raise")
        # A right message pays for no check; the walk for the wrong field is slow, and rare.
        self.emit("except ENCODE_ERRORS as error:")
        self.emit(f"    raise unencodable(m0, {self.version}, error) from None")
        self.emit("parts.append(join(w))")
        self.emit("return parts")
        return self.function(f"encode(m0, elements_max={sys.maxsize})", f"encode {label}")

    # A run of fixed-width values becomes one pack, several pieces one extension of the sink.

    def fixed(self, code: str, value: str) -> None:
        self._codes += code
        self._values.append(value)

    def piece(self, expression: str) -> None:
        self._end_run()
        self._pieces.append(expression)

    def compact(self, n: str, writer: str) -> None:
        """Add a varint, packed with the run before it where it is one byte."""
        if not self._codes:
            self._pieces.append(f"ONE_BYTE[{n}] if {n} < 128 else {writer}({n})")
            return
        codes, values = self._codes, ", ".join(self._values)
        self._codes, self._values = "", []
        # Nearly every varint is one byte: it joins the run of fixed fields before it.
        short = self.struct_method("pack", codes + "B")
        long = self.struct_method("pack", codes)
        self._pieces.append(
            f"{short}({values}, {n}) if {n} < 128 else {long}({values}) + {writer}({n})"
        )

    def _end_run(self) -> None:
        codes, values = self._codes, self._values
        self._codes, self._values = "", []
        if codes:
            self._pieces.append(f"{self.struct_method('pack', codes)}({', '.join(values)})")

    def flush(self) -> None:
        """Emit what is pending. Goes before every block that flushes: the first makes the sink."""
        self._end_run()
        pieces, self._pieces = self._pieces, []
        if not self._is_sink_made:
            self._is_sink_made = True
            self.emit(f"{self.sink} = [{', '.join(pieces)}]")
        elif len(pieces) == 1:
            self.emit(f"{self.sink}.append({pieces[0]})")
        elif pieces:
            self.emit(f"{self.sink} += ({', '.join(pieces)})")

    # Structs.

    def struct(self, declared: Any, var: str) -> None:
        """Write the fields of `var`; leaves its last pieces pending."""
        tagged = []
        for field in fields_of(declared):
            value = f"{var}.{field.name}"
            if self.version not in field.versions:
                if not field.ignorable:
                    self.emit(f"if {self.differs(field, value)}:")
                    self.emit(f"    raise ValueError('{field.name} is not in this version')")
            elif self.version in field.tagged:
                tagged.append(field)
            else:
                self.named(field, value)
        if self.flexible:
            self.tags(tagged, var)

    def named(self, field: Field, value: str) -> None:
        flexible = field.is_flexible(self.version, self.flexible)
        self.value(field.type, value, self.version in field.nullable, flexible)

    def differs(self, field: Field, value: str) -> str:
        """Return the condition that the value differs from the field's default."""
        default = field.default
        if default is None:
            return f"{value} is not None"
        null = "" if field.nullable.empty else f"{value} is None or "
        if isinstance(default, type):
            parts = [self.differs(part, f"{value}.{part.name}") for part in fields_of(default)]
            return f"({null}{' or '.join([*parts, f'{value}.unknown_tags'])})"
        if isinstance(field.type, types.Uuid):
            return f"{value}.int != {default.int}"
        if isinstance(field.type, types.Array | types.Bytes):
            return f"({null}len({value}))"
        return f"{value} != {default!r}"

    def tags(self, tagged: list[Field], var: str) -> None:
        """Write the tagged fields of a struct, known and unknown."""
        if not tagged:
            self.piece(f"tag_section([], {var}.unknown_tags) if {var}.unknown_tags else b'\\0'")
            return
        known = self.fresh("k")
        self.emit(f"{known} = []")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            self.emit(f"if {self.differs(field, f'{var}.{field.name}')}:")
            self.depth += 1
            # The size of a tagged field goes before its bytes, so they are gathered apart.
            outer = self.sink, self._is_sink_made, self._codes, self._values, self._pieces
            self.sink, self._is_sink_made = self.fresh("w"), False
            self._codes, self._values, self._pieces = "", [], []
            if isinstance(field.type, types.Nested) and self.version in field.nullable:
                # As Apache Kafka has it: a varint of 0 or 1 here, elsewhere an int8 of -1 or 1.
                self.optional(field.type, f"{var}.{field.name}", absent=b"\0")
            else:
                self.named(field, f"{var}.{field.name}")
            self.flush()
            self.emit(f"{known}.append(({field.tag}, join({self.sink})))")
            self.sink, self._is_sink_made, self._codes, self._values, self._pieces = outer
            self.depth -= 1
        self.piece(
            f"tag_section({known}, {var}.unknown_tags) if {known} or {var}.unknown_tags else b'\\0'"
        )

    # Values.

    def value(self, kind: types.WireType, value: str, nullable: bool, flexible: bool) -> None:
        match kind:
            case types.Scalar():
                self.fixed(kind.code, value)
            case types.Uuid():
                self.piece(f"{value}.int.to_bytes(16, 'big')")
            case types.String():
                self.string(value, nullable, flexible)
            case types.RecordBytes():
                self.records(value, nullable, flexible)
            case types.Bytes():
                self.sized(value, nullable, flexible)
            case types.Array():
                self.array(kind, value, nullable, flexible)
            case types.Nested():
                self.nested(kind, value, nullable)

    def length(self, n: str, code: str, flexible: bool, writer: str = "uvarint") -> None:
        """Write a length; `n` is already one more where it is compact."""
        if flexible:
            self.compact(n, writer)
        else:
            self.fixed(code, n)

    def string(self, value: str, nullable: bool, flexible: bool) -> None:
        raw, n = self.fresh("s"), self.fresh("n")
        plus = " + 1" if flexible else ""
        if nullable:
            self.emit(f"{raw} = {value}")
            self.emit(f"if {raw} is None: {raw} = b''; {n} = {0 if flexible else -1}")
            self.emit(f"else: {raw} = {raw}.encode(); {n} = len({raw}){plus}")
        else:
            self.emit(f"{raw} = {value}.encode()")
            self.emit(f"{n} = len({raw}){plus}")
        self.emit(f"if {n} >= {types.LONG_STRING_BYTES}:")
        self.emit(f"    left -= {n} // {types.LONG_STRING_BYTES}")
        self.emit("    if left < 0: raise crowded(elements_max)")
        self.length(n, "h", flexible, "string_length")
        self.piece(raw)

    def sized(self, value: str, nullable: bool, flexible: bool) -> None:
        raw, n = self.fresh("s"), self.fresh("n")
        self.counted(raw, n, value, "b''", nullable, flexible)
        self.piece(raw)

    def counted(
        self, var: str, n: str, value: str, empty: str, nullable: bool, flexible: bool
    ) -> None:
        """Write the length of `value`, -1 for null; `var` holds it from then on, null as `empty`.

        A compact length is one more, 0 for null.
        """
        plus = " + 1" if flexible else ""
        self.emit(f"{var} = {value}")
        if nullable:
            self.emit(f"if {var} is None: {var} = {empty}; {n} = {0 if flexible else -1}")
            self.emit(f"else: {n} = len({var}){plus}")
        else:
            self.emit(f"{n} = len({var}){plus}")
        self.length(n, "i", flexible)

    def records(self, value: str, nullable: bool, flexible: bool) -> None:
        """Write record batches as pieces of their own, after all that is pending."""
        if self.sink != "w":
            raise TypeError(f"{self.message.__name__}: records in a tagged field")
        raw, n = self.fresh("s"), self.fresh("n")
        plus = " + 1" if flexible else ""
        self.emit(f"{raw} = {value}")
        if nullable:
            self.emit(f"if {raw} is None: {n} = {0 if flexible else -1}; {raw} = ()")
            self.emit(f"elif type({raw}) in (list, tuple): {n} = total({raw}){plus}")
        else:
            self.emit(f"if type({raw}) in (list, tuple): {n} = total({raw}){plus}")
        self.emit(f"else: {n} = len({raw}){plus}; {raw} = ({raw},)")
        self.length(n, "i", flexible)
        self.flush()
        # A long batch stays where it is in memory: the socket takes it from there.
        self.emit(f"if {n} < {COPIED_BYTES_MAX}: w += {raw}")
        self.emit(f"else: parts.append(join(w)); parts += {raw}; w = []")

    def array(self, kind: types.Array, value: str, nullable: bool, flexible: bool) -> None:
        items, n, item = self.fresh("a"), self.fresh("n"), self.fresh("m")
        self.counted(items, n, value, "()", nullable, flexible)
        if isinstance(kind.element, types.Scalar):
            self.piece(f"scalars({kind.element.code!r}, len({items})).pack(*{items})")
            return
        self.flush()
        self.emit(f"left -= len({items})")
        self.emit("if left < 0: raise crowded(elements_max)")
        if self.sink == "w":
            self.emit(f"if len(w) > {PIECES_MAX}: parts.append(join(w)); w = []")
        self.emit(f"for {item} in {items}:")
        self.depth += 1
        if isinstance(kind.element, types.Nested):
            self.struct(kind.element.struct, item)
        else:
            self.value(kind.element, item, False, flexible)
        self.flush()
        self.depth -= 1

    def nested(self, kind: types.Nested, value: str, nullable: bool) -> None:
        if nullable:
            self.optional(kind, value, absent=b"\xff")
            return
        inner = self.fresh("m")
        self.emit(f"{inner} = {value}")
        self.struct(kind.struct, inner)

    def optional(self, kind: types.Nested, value: str, *, absent: bytes) -> None:
        """Write a struct behind a byte that says whether it is there."""
        inner = self.fresh("m")
        self.emit(f"{inner} = {value}")
        self.flush()
        self.emit(f"if {inner} is None: {self.sink}.append({absent!r})")
        self.emit("else:")
        self.depth += 1
        self.fixed("b", "1")
        self.struct(kind.struct, inner)
        self.flush()
        self.depth -= 1
