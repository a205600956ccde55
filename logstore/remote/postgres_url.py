"""The address of a database, as libpq has it, for asyncpg.

asyncpg reads URLs alone, and takes a parameter that it does not know for a setting of the server,
which then refuses the connection. So pairs become a URL, and what only libpq obeys is left out.
Source: PostgreSQL, "Database Connection Control Functions", section on connection strings.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

#: A value is quoted where it is empty or has blanks; a backslash stands before ' and itself.
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)+)")
_ESCAPED = re.compile(r"\\(.)")

#: How long, by which sockets and with which of libpq's own means it connects.
_OF_LIBPQ_ALONE = frozenset(
    {
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "replication",
        "require_auth",
        "requirepeer",
        "sslcertmode",
        "sslcompression",
        "sslcrldir",
        "sslsni",
        "tcp_user_timeout",
    }
)


def address_for_asyncpg(given: str) -> str:
    """Return the same address as a URL that asyncpg obeys. `given`: a URL, or key=value pairs."""
    if "://" in given:
        address, _, query = given.partition("?")
        known = _query(parse_qsl(query))
        return f"{address}?{known}" if known else address
    pairs = [(found[1], _value(found[2])) for found in _PAIR.finditer(given)]
    return f"postgresql://?{_query(pairs)}"


def _value(text: str) -> str:
    if text.startswith("'"):
        text = text[1:-1]
    return _ESCAPED.sub(r"\1", text)


def _query(parameters: list[tuple[str, str]]) -> str:
    known = {name: value for name, value in parameters if name not in _OF_LIBPQ_ALONE}
    address = known.pop("hostaddr", None)
    if address is not None:
        known.setdefault("host", address)
    return urlencode(known)
