"""Characters as people type them in options: `\\n`, `\\t`, `\\x00`."""

from __future__ import annotations

import re
from typing import Any

import click

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "e": "\x1b", "a": "\a"}


def unescape(text: str) -> str:
    """Return the text with its escapes replaced. ValueError names one that is not known."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        if name[0] == "x" and len(name) > 1:
            return chr(int(name[1:], 16))
        if name not in _NAMED:
            raise ValueError(f"\\{name} is no escape: there are \\n \\t \\r \\0 \\e \\a \\\\ \\xNN")
        return _NAMED[name]

    return _ESCAPE.sub(replaced, text)


class DelimiterType(click.ParamType[bytes]):
    """A delimiter of one or more bytes, typed with escapes."""

    name = "delimiter"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            delimiter = unescape(str(value)).encode()
        except ValueError as mistake:
            self.fail(str(mistake), param, context)
        if not delimiter:
            self.fail("a delimiter has at least one character.", param, context)
        return delimiter
