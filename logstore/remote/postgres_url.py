"""The address of a database, as libpq has it, for asyncpg; and what all connections set.

asyncpg reads URLs alone, by rules of its own: it ends a password at `#`, and takes a parameter that
it does not know for a setting of the server, which then refuses the connection. So libpq itself
reads the address, and asyncpg gets each part that it knows as a parameter.
Source: PostgreSQL, "Database Connection Control Functions", section on connection strings.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

#: What asyncpg obeys as libpq does. Left out is how long, by which sockets and with which means of
#: its own libpq connects.
_OF_BOTH = frozenset(
    {
        "application_name",
        "dbname",
        "gsslib",
        "host",
        "krbsrvname",
        "options",
        "passfile",
        "password",
        "port",
        "service",
        "servicefile",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "user",
    }
)

#: Lets the server send something to each connection twice a minute. What stands between the two
#: forgets connections on which nothing is sent for some minutes, and tells neither: the next read
#: or proof would wait for its time limit. So the server also lets go of hosts that have vanished.
KEPT_ALIVE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


def address_for_asyncpg(given: str) -> str:
    """Return the same address as a URL that asyncpg obeys. `given`: a URL, or key=value pairs.

    Raises psycopg.ProgrammingError, with the whole text, where `given` is neither.
    """
    parts = {name: str(value) for name, value in conninfo_to_dict(given).items()}
    known = {name: value for name, value in parts.items() if name in _OF_BOTH}
    if "hostaddr" in parts:
        known.setdefault("host", parts["hostaddr"])
    return f"postgresql://?{urlencode(known, quote_via=quote)}"
