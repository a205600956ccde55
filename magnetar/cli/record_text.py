"""Records as text: how `magnetar consume` prints them, and how `magnetar produce` reads them.

A record is a line, with its key before a delimiter, or a JSON object; what one command prints as
JSON the other reads. Printed records may also follow one of kcat's format strings:

    %t topic   %p partition   %o offset   %T timestamp (ms since 1970)
    %k key     %K its length  %s value    %S its length   %h headers   %% a percent sign

Lengths are in bytes, -1 for null. Headers are NAME=VALUE, separated by commas.
"""

from __future__ import annotations

import json
import os
import select
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from magnetar.cli.commands import unescape
from magnetar.client import ClientError
from magnetar.client.batching import ProducerRecord
from magnetar.client.consumer import Fetched
from wire.records.record import RecordHeader

_READ_BYTES = 1 << 20
#: The text of one record. Brokers accept records of 1 MB unless they are configured otherwise.
LINE_BYTES_MAX = 64 << 20
#: A pipe's writer that is at work comes again within this time; a slow one should see its lines
#: sent.
_MORE_AFTER_S = 0.005

#: What a record in JSON may say: where it was is printed and not read.
_JSON_NAMES = frozenset(
    {"topic", "partition", "offset", "timestamp", "headers"}
    | {"key", "key_base64", "value", "value_base64"}
)

Print = Callable[[Fetched], bytes]


def compile_format(text: str, null: bytes) -> Print:
    """Return the printer of a format string. ValueError names the mistake in it."""
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
        # Escapes are replaced in the text between fields only: a record that holds `\n` is printed
        # as it is.
        pieces += [_literal(literal), _field(name, null)]
        literal = ""
    pieces.append(_literal(literal))
    return lambda fetched: b"".join([piece(fetched) for piece in pieces])


def lines(key_delimiter: bytes | None, delimiter: bytes, null: bytes) -> Print:
    """Return the printer of the value and the delimiter, and of the key if it has a delimiter."""

    def shown(fetched: Fetched) -> bytes:
        record = fetched.record
        value = null if record.value is None else record.value
        if key_delimiter is None:
            return value + delimiter
        return (null if record.key is None else record.key) + key_delimiter + value + delimiter

    return shown


def json_line(fetched: Fetched) -> bytes:
    """Return one JSON object; bytes that are not UTF-8 get a name that ends with `_base64`."""
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
        # A list of pairs, not an object: names of headers may repeat, and their order counts.
        shown["headers"] = [[name, _header(value)] for name, value in record.headers]
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        # JSON is text: another way to write such bytes could not be read back as the same bytes.
        return {f"{name}_base64": b64encode(data).decode()}


def _header(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    ((name, text),) = _text("", value).items()
    return {name.removeprefix("_"): str(text)} if name else text


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


@dataclass(frozen=True)
class LineFormat:
    """The form of the lines that become records."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    """The key of records whose line has none."""
    headers: Sequence[RecordHeader] = ()
    empty_is_null: bool = False
    is_json: bool = False

    def parse(self, line: bytes, number: int) -> ProducerRecord:
        """Return the record of a line. ClientError: it is not the JSON object of a record."""
        if self.is_json:
            return self._parse_json(line, number)
        key, value = self.key, line
        if self.key_delimiter is not None:
            before, delimiter, after = line.partition(self.key_delimiter)
            # A line without the delimiter is a value alone: its record gets the key of --key.
            if delimiter:
                key, value = before, after
        shown = None if self.empty_is_null and not value else value
        if self.empty_is_null and key == b"":
            key = None
        return ProducerRecord(key, shown, None, self.headers)

    def _parse_json(self, line: bytes, number: int) -> ProducerRecord:
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("it is no JSON object")
            # A misspelt `value` would else become a null, which deletes in a compacted topic.
            if unknown := sorted(fields.keys() - _JSON_NAMES):
                raise ValueError(f"{unknown[0]!r} is no field of a record")
            if not _has(fields, "value"):
                raise ValueError("it has neither value nor value_base64")
            headers = [(name, _header_bytes(value)) for name, value in fields.get("headers") or ()]
            for name, _ in headers:
                if not isinstance(name, str):
                    raise ValueError("the name of a header is no text")
                name.encode()  # A half of a surrogate pair is no UTF-8.
            return ProducerRecord(
                _bytes_of(fields, "key") if _has(fields, "key") else self.key,
                _bytes_of(fields, "value"),
                _timestamp(fields.get("timestamp")),
                headers or self.headers,
            )
        except (ValueError, TypeError, AttributeError, Base64Error, RecursionError) as error:
            raise ClientError(
                f"line {number} is no record as `magnetar consume --json` prints it: {error}"
            ) from None


def _has(fields: dict[str, Any], name: str) -> bool:
    if name in fields and f"{name}_base64" in fields:
        raise ValueError(f"it has both {name} and {name}_base64")
    return name in fields or f"{name}_base64" in fields


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    # Infinity is a number of Python's JSON, and no integer.
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"the timestamp {value} is no whole number of ms")
    if not -1 << 63 <= int(value) < 1 << 63:
        raise ValueError(f"the timestamp {value} does not fit into 64 bits")
    return int(value)


def _header_bytes(value: Any) -> bytes | None:
    """Return the bytes of a header: of a text, or of `{"base64": TEXT}`."""
    if isinstance(value, dict):
        if value.keys() != {"base64"}:
            raise ValueError("a header is a text, null, or an object with base64 alone")
        return b64decode(value["base64"], validate=True)
    return None if value is None else _encoded(value)


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return b64decode(fields[f"{name}_base64"], validate=True)
    value = fields.get(name)
    return None if value is None else _encoded(value)


def _encoded(value: Any) -> bytes:
    # A value that is JSON itself, as `jq` makes it, becomes its text.
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def read_records(stream: IO[bytes], form: LineFormat) -> Iterator[list[ProducerRecord]]:
    """Yield records as they come: many together from a file, each line by itself from a terminal.

    Empty lines between JSON objects are skipped. Text behind the last delimiter is a record too.
    """
    number = 0
    rest = b""
    ready: list[ProducerRecord] = []
    while chunk := _read(stream):
        # The last piece may be half a line, or half a delimiter: it waits for the next chunk.
        *lines, rest = (rest + chunk).split(form.delimiter)
        for line in lines:
            number += 1
            if line or not form.is_json:
                ready.append(form.parse(line, number))
        # Without a bound, binary input would fill the memory before the first record.
        if len(rest) > LINE_BYTES_MAX:
            raise ClientError(
                f"line {number + 1} is longer than {LINE_BYTES_MAX >> 20} MiB."
                " --delimiter names the end of records."
            )
        # Larger batches are cheaper, so records wait while more input comes at once; a full chunk
        # is enough for a batch.
        if ready and not (len(chunk) < _READ_BYTES and _has_more(stream)):
            yield ready
            ready = []
    if rest:
        ready.append(form.parse(rest, number + 1))
    if ready:
        yield ready


def _read(stream: IO[bytes]) -> bytes:
    """Return the bytes that are there; wait for the first one only."""
    # `read` waits for the whole size: lines that are typed would not be sent before the end.
    read1 = getattr(stream, "read1", stream.read)
    data: bytes = read1(_READ_BYTES)
    return data


def _has_more(stream: IO[bytes]) -> bool:
    """Return whether more input comes at once. The end of the input counts as more."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return False
    # A person expects a line to be sent when it is typed.
    if os.isatty(descriptor):
        return False
    return bool(select.select([descriptor], [], [], _MORE_AFTER_S)[0])
