"""The value of `sasl.jaas.config`: a login module, its flag, and options, ended by a semicolon.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="pw";

Source: java.security's login configuration syntax, of which Kafka takes one entry.
"""

from __future__ import annotations

import re

_FLAGS = ("required", "requisite", "sufficient", "optional")
_OPTION = re.compile(r'\s+([\w.\-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s";]+)')
_HEAD = re.compile(r"\s*([\w.$]+)\s+(\w+)")
_END = re.compile(r"\s*;\s*")


def parse_jaas(text: str) -> dict[str, str]:
    """Return the options of the one entry of `text`. Raises ValueError, which shows no value."""
    head = _HEAD.match(text)
    if head is None or head[2].lower() not in _FLAGS:
        raise ValueError('is no JAAS entry: expected MODULE required NAME="VALUE" ... ;')
    options: dict[str, str] = {}
    position = head.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, value = option.groups()
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        options[name] = value
        position = option.end()
    if _END.fullmatch(text, position) is None:
        raise ValueError(f"is no JAAS entry: it cannot be read after option {len(options)}")
    return options
