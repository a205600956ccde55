"""How consumed records are printed: kcat's format strings, lines, or JSON objects.

    %t topic   %p partition   %o offset   %T timestamp (ms since 1970)
    %k key     %K its length  %s value    %S its length   %h headers   %% a percent sign

Lengths are in bytes, -1 for null. Headers are NAME=VALUE, separated by commas.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from magnetar.cli.escapes import unescape
from magnetar.client.consumer import Fetched

Print = Callable[[Fetched], bytes]


def compile_format(text: str, null: bytes) -> Print:
    """Return what prints a record by a format string. ValueError names what is wrong with it."""
    pieces: list[Print] = []
    literal, rest = "", text
    while rest:
        before, percent, rest = rest.partition("%")
        literal += before
        if not percent:
            break
        if not rest:
            raise ValueError("it ends with %; a percent sign is %%")
        name, rest = rest[0], rest[1:]
        if name == "%":
            literal += "%"
            continue
        if name not in _FIELDS:
            raise ValueError(f"%{name} is not known: there are {', '.join(sorted(_SHOWN))}")
        pieces += [_literal(literal), _field(name, null)]
        literal = ""
    pieces.append(_literal(literal))
    return lambda fetched: b"".join([piece(fetched) for piece in pieces])


def lines(key_delimiter: bytes | None, delimiter: bytes, null: bytes) -> Print:
    """Return what prints the value, after the key where it is wanted, and the delimiter."""

    def shown(fetched: Fetched) -> bytes:
        record = fetched.record
        value = null if record.value is None else record.value
        if key_delimiter is None:
            return value + delimiter
        return (null if record.key is None else record.key) + key_delimiter + value + delimiter

    return shown


def json_line(fetched: Fetched) -> bytes:
    """Print one JSON object; bytes that are no text under a name that ends with `_base64`."""
    record = fetched.record
    shown: dict[str, Any] = {
        "topic": fetched.topic,
        "partition": fetched.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
    }
    if record.headers:
        shown["headers"] = [
            [name, None if value is None else value.decode("utf-8", "backslashreplace")]
            for name, value in record.headers
        ]
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def _literal(text: str) -> Print:
    data = unescape(text).encode()
    return lambda fetched: data


def _field(name: str, null: bytes) -> Print:
    of = _FIELDS[name]

    def shown(fetched: Fetched) -> bytes:
        value = of(fetched)
        if value is None:
            return null
        return value if isinstance(value, bytes) else str(value).encode()

    return shown


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(fetched: Fetched) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in fetched.record.headers
    )


_FIELDS: dict[str, Callable[[Fetched], bytes | str | int | None]] = {
    "t": lambda fetched: fetched.topic,
    "p": lambda fetched: fetched.partition,
    "o": lambda fetched: fetched.record.offset,
    "T": lambda fetched: fetched.record.timestamp,
    "k": lambda fetched: fetched.record.key,
    "K": lambda fetched: _length(fetched.record.key),
    "s": lambda fetched: fetched.record.value,
    "S": lambda fetched: _length(fetched.record.value),
    "h": _headers,
}
_SHOWN = [f"%{name}" for name in _FIELDS] + ["%%"]
