"""Bytes of a record as a person reads them: JSON in lines, text, or a dump. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from magnetar.client.readable import printable

#: How much of a value a list shows, and how much its own page does.
PREVIEW_CHARACTERS = 180
SHOWN_CHARACTERS = 200_000
_DUMPED_BYTES = 4096
#: JSON that becomes longer than so many times itself in lines, as deep nesting does, is shown as it
#: came: a value of 200 kB could become 200 MB.
_GROWTH_MAX = 10
_LINE_BYTES = 16
#: A string, a mark, or anything else that stands between them.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


@dataclass(frozen=True)
class Payload:
    """A key or value. `kind`: null, empty, json, text, binary, or what a schema made of it."""

    kind: str
    text: str
    size_bytes: int
    is_cut: bool = False
    note: str = ""

    @property
    def preview(self) -> str:
        """One short line."""
        line = " ".join(self.text[: PREVIEW_CHARACTERS * 4].split())
        if len(line) > PREVIEW_CHARACTERS:
            return line[:PREVIEW_CHARACTERS] + "…"
        return line


def payload(data: bytes | None) -> Payload:
    """Return what the bytes say."""
    if data is None:
        return Payload("null", "", 0)
    if not data:
        return Payload("empty", "", 0)
    size = len(data)
    is_cut = size > SHOWN_CHARACTERS
    try:
        # The cut may go through a character, so only whole values have to be UTF-8 to the end.
        text = data[:SHOWN_CHARACTERS].decode("utf-8", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        return Payload("binary", dump(data), size, size > _DUMPED_BYTES)
    if "\0" in text:
        return Payload("binary", dump(data), size, size > _DUMPED_BYTES)
    if not is_cut and is_json(text):
        return Payload("json", printable(indented(text)), size)
    return Payload("text", printable(text), size, is_cut)


def is_json(text: str) -> bool:
    """Return whether the text is an object or an array of JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    # Python refuses numbers of thousands of digits, and nesting of a thousand levels.
    except (ValueError, RecursionError):
        return False
    return True


def indented(text: str) -> str:
    """Return valid JSON in lines. Its numbers, its order and repeated names stay as they are.

    JSON that becomes much longer so is returned as it is.
    """
    pieces: list[str] = []
    depth = 0
    room = _GROWTH_MAX * len(text) + 2 * PREVIEW_CHARACTERS
    before = ""
    for lexeme in _TOKEN.findall(text):
        # Each line has its depth twice, and a character before the next one at least.
        room -= 2 * depth + 1 if lexeme in "}],{[" else 0
        if room < 0:
            return text
        if lexeme in "}]":
            depth -= 1
            if before not in "{[":
                pieces.append("\n" + "  " * depth)
        elif before and before in "{[,":
            pieces.append("\n" + "  " * depth)
        pieces.append(": " if lexeme == ":" else lexeme)
        if lexeme in "{[":
            depth += 1
        before = lexeme
    return "".join(pieces)


def dump(data: bytes) -> str:
    """Return the first bytes in hexadecimal, 16 a line, with those that are ASCII beside them."""
    lines = []
    for start in range(0, min(len(data), _DUMPED_BYTES), _LINE_BYTES):
        piece = data[start : start + _LINE_BYTES]
        seen = "".join(chr(each) if 32 <= each < 127 else "." for each in piece)
        lines.append(f"{start:06x}  {piece.hex(' '):<47}  {seen}")
    return "\n".join(lines)
