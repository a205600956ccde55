"""Decoders: one straight-line function for each (message, version). See `wire.source`.

Invariant of the text: `pos` never passes `limit`, the end of the input. Lengths and counts are
compared with what remains before anything is cut out or allocated; fixed fields are bounds-checked
by `Struct.unpack_from`, single bytes by indexing. `left` counts down what the message may hold.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from wire import primitives, types
from wire.errors import TooManyElements, WireError
from wire.schema import Field, fields_of
from wire.source import DEPTH_MAX, Source, has_records, is_flexible, size_min

#: The elements of all arrays, and tagged fields, that one message may have. An element of a byte or
#: two on the wire is an object of a hundred in memory; no real request comes near.
ELEMENTS_MAX = 1 << 20
#: The tagged fields that one struct may have, as in Kafka 4.4. No schema has more than a handful.
TAGGED_FIELDS_MAX = 10_000


def compile_decoder(message: Any, version: int) -> Callable[..., Any]:
    """Return `decode(buf, pos, elements_max=ELEMENTS_MAX)`.

    That returns the message, the position behind it, and the number of its elements: of all arrays,
    tagged fields, and each KB that a long string takes. It raises `TooManyElements` for more than
    `elements_max`.
    """
    return _DecoderSource(message, version).build()


class _DecoderSource(Source):
    """The decoder of one message at one version."""

    def __init__(self, message: Any, version: int) -> None:
        super().__init__()
        self.message = message
        self.version = version
        self.flexible = is_flexible(message, version)
        self.path: list[str] = []
        self.levels = 0
        self._run: list[tuple[str, str]] = []  # (struct code, target) not yet emitted
        self._after_run: list[str] = []

    def build(self) -> Callable[..., Any]:
        label = f"{self.message.__name__} v{self.version}"

        def short(path: str, position: int) -> WireError:
            return WireError(f"{label}: {path} at byte {position}: more is announced than remains")

        def overtagged(position: int, count: int) -> WireError:
            return WireError(
                f"{label}: {count} tagged fields at byte {position}, at most {TAGGED_FIELDS_MAX}"
            )

        def crowded(position: int, elements_max: int) -> TooManyElements:
            return TooManyElements(f"{label} at byte {position}: more than {elements_max} elements")

        self.constants |= {
            "StructError": struct.error,
            "WireError": WireError,
            "new": object.__new__,
            "overtagged": overtagged,
            "crowded": crowded,
            "getsizeof": sys.getsizeof,
            "read_string_length": primitives.read_string_length,
            "read_tag": primitives.read_tag,
            "read_tags": primitives.read_tags,
            "read_uvarint": primitives.read_uvarint,
            "scalars": primitives.scalars,
            "short": short,
            "uuid_of": primitives.uuid_of,
        }
        if has_records(self.message, self.version):
            # A slice of a memoryview copies nothing; a slice of bytes would copy the records.
            self.emit("if type(buf) is not memoryview: buf = memoryview(buf)")
        self.emit("limit = len(buf)")
        # One budget for the whole message: arrays within arrays multiply.
        self.emit("left = elements_max")
        self.emit("try:")
        self.depth += 1
        self.struct(self.message, "m0")
        self.flush()
        self.emit("return m0, pos, elements_max - left")
        self.depth -= 1
        # Fixed fields check no bounds of their own: to read past the end raises one of these.
        self.emit("except (StructError, IndexError):")
        self.emit(f"    raise WireError(f'{label} ends early, after byte {{pos}}') from None")
        self.emit("except UnicodeDecodeError as error:")
        self.emit(f"    raise WireError(f'{label}: {{error}}, before byte {{pos}}') from None")
        return self.function(f"decode(buf, pos, elements_max={ELEMENTS_MAX})", f"decode {label}")

    # Runs of fixed-width fields.

    def fixed(self, code: str, target: str) -> None:
        self._run.append((code, target))

    def flush(self) -> None:
        """Emit the pending run: one unpack for all of it."""
        run, self._run = self._run, []
        after, self._after_run = self._after_run, []
        if run:
            codes = "".join(code for code, _ in run)
            if codes == "B":
                # To index a byte is quicker than to unpack one, and raises IndexError likewise.
                self.emit(f"{run[0][1]} = buf[pos]")
            else:
                targets = ", ".join(target for _, target in run)
                unpack = self.struct_method("unpack_from", codes)
                self.emit(f"{targets}, = {unpack}(buf, pos)")
            self.emit(f"pos += {struct.calcsize('>' + codes)}")
        for line in after:
            self.emit(line)

    # Structs.

    def struct(self, declared: Any, var: str) -> None:
        """Read a struct into a new object `var`; leaves its last run pending."""
        self.levels += 1
        if self.levels > DEPTH_MAX:
            raise TypeError(f"{declared.__name__} nests deeper than {DEPTH_MAX}")
        self.emit(f"{var} = new({self.constant('C', declared, declared)})")
        tagged = []
        for field in fields_of(declared):
            if self.version not in field.versions:
                self.absent(field, var)
            elif self.version in field.tagged:
                tagged.append(field)
            else:
                self.named(field, var)
        if self.flexible:
            self.tags(tagged, var)
        else:
            self.emit(f"{var}.unknown_tags = ()")
        self.levels -= 1

    def absent(self, field: Field, var: str) -> None:
        """Give a field that is not there its default."""
        self.emit(f"{var}.{field.name} = {self.default(field)}")

    def named(self, field: Field, var: str) -> None:
        self.path.append(field.name)
        flexible = field.is_flexible(self.version, self.flexible)
        nullable = self.version in field.nullable
        self.value(field.type, f"{var}.{field.name}", nullable, flexible)
        self.path.pop()

    def tags(self, tagged: list[Field], var: str) -> None:
        """Read the tagged fields at the end of a struct."""
        # A tagged field that is left out has its default, so all begin with it.
        for field in tagged:
            self.absent(field, var)
        self.emit(f"{var}.unknown_tags = ()")
        count = self.fresh("n")
        self.length("B", count, "read_uvarint")
        self.emit(f"if {count}:")
        self.depth += 1
        # Before the count of elements, which a reader with more patience may raise.
        self.emit(f"if {count} > {TAGGED_FIELDS_MAX}: raise overtagged(pos, {count})")
        self.count(count)
        if tagged:
            self.known_tags(tagged, var, count)
        else:
            self.emit(f"{var}.unknown_tags, pos = read_tags(buf, pos, limit, {count})")
        self.depth -= 1

    def known_tags(self, tagged: list[Field], var: str, count: str) -> None:
        """Read `count` tagged fields: a branch for each tag that the schema knows."""
        tag, stop, unknown = (self.fresh(prefix) for prefix in ("t", "stop", "u"))
        self.emit(f"{unknown} = {{}}")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.emit(f"{tag}, pos, {stop} = read_tag(buf, pos, limit)")
        branch = "if"
        for field in tagged:
            self.emit(f"{branch} {tag} == {field.tag}:")
            self.depth += 1
            if isinstance(field.type, types.Nested) and self.version in field.nullable:
                self.path.append(field.name)
                self.optional(field.type, f"{var}.{field.name}", present="== 1", absent="== 0")
                self.path.pop()
            else:
                self.named(field, var)
            self.flush()
            self.depth -= 1
            branch = "elif"
        self.emit("else:")
        self.emit(f"    {unknown}[{tag}] = bytes(buf[pos:{stop}])")
        self.emit(f"    pos = {stop}")
        # Each tagged field says its size: one that is read otherwise belongs to no known schema.
        self.emit(f"if pos != {stop}: raise short({self.where('tags')}, pos)")
        self.depth -= 1
        self.emit(f"if {unknown}: {var}.unknown_tags = tuple(sorted({unknown}.items()))")

    # Values.

    def where(self, last: str = "") -> str:
        return repr(".".join([*self.path, last] if last else self.path))

    def value(self, kind: types.WireType, target: str, nullable: bool, flexible: bool) -> None:
        """Read one value into `target`, which may be left in the pending run."""
        match kind:
            case types.Scalar():
                self.fixed(kind.code, target)
            case types.Uuid():
                raw = self.fresh("r")
                self.fixed("16s", raw)
                self._after_run.append(f"{target} = uuid_of({raw})")
            case types.String() | types.Bytes():
                self.sized(kind, target, nullable, flexible)
            case types.Array():
                self.array(kind, target, nullable, flexible)
            case types.Nested():
                self.nested(kind, target, nullable)

    def length(self, code: str, var: str, reader: str) -> None:
        """Read a length at the end of the pending run: `B` is the first byte of a varint."""
        self.fixed(code, var)
        self.flush()
        if code == "B":
            self.emit(f"if {var} > 127: {var}, pos = {reader}(buf, pos, {var})")

    def length_of_bytes(self, var: str, flexible: bool) -> None:
        """Read the length of bytes. Two bytes of a varint, as most batches need, cost no call."""
        self.fixed("B" if flexible else "i", var)
        self.flush()
        if flexible:
            self.emit(f"if {var} > 127:")
            self.emit("    second = buf[pos]")
            self.emit("    if second > 127:")
            self.emit(f"        {var}, pos = read_uvarint(buf, pos, {var})")
            self.emit("    else:")
            self.emit(f"        {var} += (second - 1) * 128")
            self.emit("        pos += 1")

    def count(self, n: str) -> None:
        """Take the elements about to be read from what the message may have."""
        self.emit(f"left -= {n}")
        self.emit("if left < 0: raise crowded(pos, elements_max)")

    def sized(self, kind: types.WireType, target: str, nullable: bool, flexible: bool) -> None:
        n, end = self.fresh("n"), self.fresh("e")
        if isinstance(kind, types.String):
            self.length("B" if flexible else "h", n, "read_string_length")
            value = f"str(buf[pos:{end}], 'utf-8')"
        else:
            self.length_of_bytes(n, flexible)
            cut = f"buf[pos:{end}]"
            value = cut if isinstance(kind, types.RecordBytes) else f"bytes({cut})"
        self.emit(f"{end} = pos + {n}" + (" - 1" if flexible else ""))
        if nullable:
            self.emit(f"if {n}{'' if flexible else ' >= 0'}:")
            self.depth += 1
        # The left side refuses negative lengths: they would move `pos` back.
        self.emit(f"if not pos <= {end} <= limit: raise short({self.where()}, pos)")
        if isinstance(kind, types.String):
            self.emit(f"if {n} >= {types.LONG_STRING_BYTES}:")
            self.depth += 1
            self.count(f"{n} // {types.LONG_STRING_BYTES}")
            self.emit(f"{target} = {value}")
            # One character beyond the first 65,536 makes every character take four bytes.
            more = f"(getsizeof({target}) - {n}) // {types.LONG_STRING_BYTES}"
            self.count(f"max(0, {more})")
            self.depth -= 1
            self.emit(f"else: {target} = {value}")
        else:
            self.emit(f"{target} = {value}")
        self.emit(f"pos = {end}")
        if nullable:
            self.depth -= 1
            self.null(n, target, flexible)

    def null(self, n: str, target: str, flexible: bool) -> None:
        """The branch of a length that announces no value."""
        self.emit("else:")
        if not flexible:
            self.emit(f"    if {n} != -1: raise short({self.where()}, pos)")
        self.emit(f"    {target} = None")

    def array(self, kind: types.Array, target: str, nullable: bool, flexible: bool) -> None:
        n = self.fresh("n")
        self.length("B" if flexible else "i", n, "read_uvarint")
        if flexible:
            self.emit(f"{n} -= 1")
        if nullable:
            self.emit(f"if {n} >= 0:")
            self.depth += 1
        least = size_min(kind.element, self.version, self.flexible)
        if least < 1:
            # Elements of no bytes would make every count plausible.
            raise TypeError(f"{self.message.__name__}: elements of {target} may take no bytes")
        needed = n if least == 1 else f"{n} * {least}"
        self.emit(f"if not 0 <= {needed} <= limit - pos: raise short({self.where()}, pos)")
        self.count(n)
        if isinstance(kind.element, types.Scalar):
            # One call for all numbers of the array.
            code = kind.element.code
            self.emit(f"{target} = [*scalars({code!r}, {n}).unpack_from(buf, pos)]")
            self.emit(f"pos += {needed}")
        else:
            self.elements(kind.element, n, target, flexible)
        if nullable:
            self.depth -= 1
            # A compact null has become -1 above, as the other kind is.
            self.null(n, target, flexible=False)

    def elements(self, kind: types.WireType, n: str, target: str, flexible: bool) -> None:
        items, item = self.fresh("a"), self.fresh("m")
        self.emit(f"{items} = []")
        self.emit(f"for _ in range({n}):")
        self.depth += 1
        if isinstance(kind, types.Nested):
            self.struct(kind.struct, item)
        else:
            self.value(kind, item, False, flexible)
        self.flush()
        self.emit(f"{items}.append({item})")
        self.depth -= 1
        self.emit(f"{target} = {items}")

    def nested(self, kind: types.Nested, target: str, nullable: bool) -> None:
        if nullable:
            self.optional(kind, target, present=">= 0", absent="< 0")
            return
        inner = self.fresh("m")
        self.struct(kind.struct, inner)
        self.emit(f"{target} = {inner}")

    def optional(self, kind: types.Nested, target: str, *, present: str, absent: str) -> None:
        """Read a struct behind an int8 that says whether it is there.

        An int8 of -1 or 1; in a tagged field, as Apache Kafka has it, an unsigned varint of 0 or 1.
        """
        inner, marker = self.fresh("m"), self.fresh("b")
        self.fixed("b", marker)
        self.flush()
        self.emit(f"if {marker} {present}:")
        self.depth += 1
        self.struct(kind.struct, inner)
        self.flush()
        self.emit(f"{target} = {inner}")
        self.depth -= 1
        self.emit(f"elif {marker} {absent}: {target} = None")
        self.emit(f"else: raise short({self.where()}, pos)")
