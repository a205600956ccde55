"""Records out of standard input: lines, with keys before a delimiter, or JSON objects."""

from __future__ import annotations

import json
import os
import select
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from magnetar.client.cluster import ClientError
from wire.records.record import RecordHeader

_READ_BYTES = 1 << 20
#: One record's text; brokers take 1 MB unless they are told otherwise.
LINE_BYTES_MAX = 64 << 20
_MORE_AFTER_S = 0.005


class InputRecord(NamedTuple):
    """One record to be sent; `timestamp` None: the time it is sent."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Sequence[RecordHeader]


@dataclass(frozen=True)
class LineFormat:
    """How a line becomes a record."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    """Of every record whose line has none."""
    headers: Sequence[RecordHeader] = ()
    empty_is_null: bool = False
    is_json: bool = False

    def parse(self, line: bytes, number: int) -> InputRecord:
        """Return the record of a line. ClientError: it is no JSON object of ours."""
        if self.is_json:
            return self._parse_json(line, number)
        key, value = self.key, line
        if self.key_delimiter is not None:
            before, delimiter, after = line.partition(self.key_delimiter)
            if delimiter:
                key, value = before, after
        shown = None if self.empty_is_null and not value else value
        if self.empty_is_null and key == b"":
            key = None
        return InputRecord(key, shown, None, self.headers)

    def _parse_json(self, line: bytes, number: int) -> InputRecord:
        try:
            said = json.loads(line)
            if not isinstance(said, dict):
                raise ValueError("it is no JSON object")
            headers = [
                (str(name), None if value is None else str(value).encode())
                for name, value in said.get("headers") or ()
            ]
            timestamp = said.get("timestamp")
            return InputRecord(
                _bytes_of(said, "key") if _has(said, "key") else self.key,
                _bytes_of(said, "value"),
                None if timestamp is None else int(timestamp),
                headers or self.headers,
            )
        except (ValueError, TypeError, AttributeError, Base64Error) as error:
            raise ClientError(
                f"line {number} is no record as `magnetar consume --json` prints it: {error}"
            ) from None


def _has(said: dict[str, Any], name: str) -> bool:
    return name in said or f"{name}_base64" in said


def _bytes_of(said: dict[str, Any], name: str) -> bytes | None:
    if (encoded := said.get(f"{name}_base64")) is not None:
        return b64decode(encoded, validate=True)
    value = said.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def read_records(stream: IO[bytes], form: LineFormat) -> Iterator[list[InputRecord]]:
    """Yield records as they come: many at once from a file, each line at once from a terminal.

    An empty line of JSON is passed over. What follows the last delimiter is a record, if it is not
    empty.
    """
    number = 0
    rest = b""
    ready: list[InputRecord] = []
    while chunk := _read(stream):
        *lines, rest = (rest + chunk).split(form.delimiter)
        for line in lines:
            number += 1
            if line or not form.is_json:
                ready.append(form.parse(line, number))
        if len(rest) > LINE_BYTES_MAX:
            raise ClientError(
                f"line {number + 1} is longer than {LINE_BYTES_MAX >> 20} MiB."
                " --delimiter says where records end."
            )
        if ready and not (len(chunk) < _READ_BYTES and _has_more(stream)):
            yield ready
            ready = []
    if rest:
        ready.append(form.parse(rest, number + 1))
    if ready:
        yield ready


def _read(stream: IO[bytes]) -> bytes:
    """Return what is there, and wait only for the first byte."""
    read1 = getattr(stream, "read1", stream.read)
    data: bytes = read1(_READ_BYTES)
    return data


def _has_more(stream: IO[bytes]) -> bool:
    """Whether more input comes at once; the end of it counts as more."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return False
    if os.isatty(descriptor):
        return False
    return bool(select.select([descriptor], [], [], _MORE_AFTER_S)[0])
