"""The syntax of server.properties, as java.util.Properties reads it.

Natural lines: `#` and `!` begin a comment line, a backslash at the end continues on the next line
whose leading white space is dropped. The key ends at the first unescaped `=`, `:` or white space.
Escapes: backslash-t, -n, -r, -f, -uXXXX; a backslash before any other character is dropped.
Source: the Java SE documentation of Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WHITESPACE = " \t\f"
#: Python's splitlines would also end a line at a form feed, which is white space here.
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_UNIT = re.compile("[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A line that java.util.Properties would refuse; carries its number."""


def parse_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, key, value) in file order; line numbers count from 1."""
    for number, line in _logical_lines(text):
        key_end, value_start = _split(line)
        yield number, _unescape(line[:key_end], number), _unescape(line[value_start:], number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending = ""
    first = 0
    for number, natural in enumerate(_LINE_ENDS.split(text), 1):
        stripped = natural.lstrip(_WHITESPACE)
        # Only a new line can be a comment: after a backslash `#` belongs to the value.
        if not pending:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        line = pending + stripped
        if _continues(line):
            pending = line[:-1]
            continue
        pending = ""
        yield first, line
    # The file ends with a backslash: Java drops it and keeps the line.
    if pending:
        yield first, pending


def _continues(line: str) -> bool:
    # An even number of backslashes is that many halves of escaped ones.
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[int, int]:
    """Return where the key ends (exclusive) and where the value begins."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _WHITESPACE:
        # An escaped separator belongs to the key.
        position += 2 if line[position] == "\\" else 1
    key_end = min(position, len(line))
    value_start = key_end
    while value_start < len(line) and line[value_start] in _WHITESPACE:
        value_start += 1
    # One separator at most: in `key==value` the value begins with `=`.
    if value_start < len(line) and line[value_start] in "=:":
        value_start += 1
        while value_start < len(line) and line[value_start] in _WHITESPACE:
            value_start += 1
    return key_end, value_start


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            pieces.append(character if character != "\\" else "")
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            # Python's int takes `+12`, ` 12 ` and `1_2`, which Java refuses.
            if _UNIT.fullmatch(digits) is None:
                raise PropertiesError(f"line {number}: malformed \\uXXXX escape")
            pieces.append(chr(int(digits, 16)))
            position += 4
        else:
            pieces.append(_ESCAPES.get(escaped, escaped))
    return _joined("".join(pieces), number)


def _joined(text: str, number: int) -> str:
    """Return `text` with each pair of UTF-16's surrogates as the one character that it stands for.

    Java's texts are UTF-16, so `store` writes a character beyond U+FFFF as two escapes.
    """
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise PropertiesError(f"line {number}: half of a surrogate pair") from None
