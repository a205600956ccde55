"""Which Avro schemas the console uses: those with which hostile bytes do no harm. Pure.

fastavro reads by recursion in C. Data of a schema that names itself, as deep as it is long, would
end the process. Elements of an array that take no bytes cost their sender nothing, and memory here:
ten bytes can announce any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The most bytes that are read by a schema that names itself: each may be one level more.
RECURSIVE_BYTES_MAX = 1000
_NAMED = ("record", "error")


def names_itself(schema: Any, above: frozenset[str] = frozenset()) -> bool:
    """Return whether a parsed schema has a type within itself. `above`: the records around it."""
    if isinstance(schema, str):
        return schema in above
    if isinstance(schema, list):
        return any(names_itself(each, above) for each in schema)
    kind = schema["type"]
    if kind in _NAMED:
        inside = above | {schema["name"]}
        return any(names_itself(each["type"], inside) for each in schema["fields"])
    return names_itself(_inner(schema), above)


def has_free_elements(schema: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a parsed schema has an array of elements that take no bytes.

    `named`: the types that its names stand for. Arrays within those are not looked at.
    """
    takes = _Taking(named)

    def has(part: Any) -> bool:
        if isinstance(part, str):
            return False
        if isinstance(part, list):
            return any(map(has, part))
        kind = part["type"]
        if kind in _NAMED:
            return any(has(each["type"]) for each in part["fields"])
        if kind == "array" and not takes.bytes(part["items"]):
            return True
        return has(_inner(part))

    return has(schema)


def _inner(schema: Any) -> Any:
    """Return the type of an array's items or of a map's values; for other types, the own name."""
    kind = schema["type"]
    return schema["items"] if kind == "array" else schema["values"] if kind == "map" else kind


class _Taking:
    """Whether each value of a type takes a byte at least; each named type is looked at once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, bool] = {}

    def bytes(self, schema: Any) -> bool:
        if isinstance(schema, str):
            return self._name(schema)
        if isinstance(schema, list):
            return True
        kind = schema["type"]
        if kind in _NAMED:
            return any(self.bytes(each["type"]) for each in schema["fields"])
        return bool(schema["size"]) if kind == "fixed" else self.bytes(kind)

    def _name(self, name: str) -> bool:
        if name not in self._named:
            return name != "null"
        if name not in self._known:
            # Nothing is known yet of a type within itself; its other fields tell.
            self._known[name] = False
            self._known[name] = self.bytes(self._named[name])
        return self._known[name]
