"""Patterns that Kafka gives to Java's `Pattern`, and that RE2 would silently read otherwise. Pure.

Within `[]` Java has sets of their own: `[a-z&&[^b]]` is an intersection, `[[a]b]` a union. RE2
takes the same text for single characters.
"""

from __future__ import annotations

import re

#: A class of characters, or what may contain the same text and is none: a quotation, an escape.
_CLASS = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|(?P<whole>\[\^?\]?(?P<inside>(?:\\.|[^\]\\])*)\]?)", re.DOTALL
)
_SET = re.compile(r"(?:\\.|[^\[&\\]|&(?!&))*(?:\[|&&)", re.DOTALL)


def read_otherwise(pattern: str) -> str | None:
    """Return the first class of characters that Java reads otherwise than RE2; None: none is."""
    for found in _CLASS.finditer(pattern):
        if found["whole"] is not None and _SET.match(found["inside"]) is not None:
            return found["whole"]
    return None
