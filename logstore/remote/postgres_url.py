"""Makes an address that libpq understands one for asyncpg; and the settings of every connection.

asyncpg reads only URLs, by rules of its own: it ends a password at `#`, and takes a parameter that
it does not know for a setting of the server, which then refuses the connection. So libpq reads the
address here, and asyncpg gets each part that it knows as a parameter.
Source: PostgreSQL, "Database Connection Control Functions", section on connection strings.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

#: The parameters that asyncpg obeys as libpq does. Left out are those of libpq's own waits, sockets
#: and ways of connecting.
_OBEYED_BY_ASYNCPG = frozenset(
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

#: With these the server sends something on each connection twice a minute. A firewall in between
#: forgets connections that are silent for some minutes, and tells neither end: the next read or
#: proof would wait for its time limit. They also make the server notice hosts that have vanished.
KEPT_ALIVE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

#: Switches off the limits that the database or the role may set, since each call has its own limit.
#: Not all versions of PostgreSQL know all of these.
UNLIMITED = """
SELECT set_config(name, '0', false) FROM unnest(
    ARRAY['statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout']
) name WHERE current_setting(name, true) IS NOT NULL"""

#: This function of the server waits for a standby. If the wait is cancelled, the statement
#: succeeds, and the function sends a warning in the server's language.
STANDBY_WAIT = "SyncRepWaitForLSN"


def address_for_asyncpg(given: str) -> str:
    """Return the same address as a URL that asyncpg obeys. `given`: a URL, or key=value pairs.

    Raises psycopg.ProgrammingError if `given` is neither; its message has the whole of `given`.
    """
    parts = {name: str(value) for name, value in conninfo_to_dict(given).items()}
    known = {name: value for name, value in parts.items() if name in _OBEYED_BY_ASYNCPG}
    if "hostaddr" in parts:
        known.setdefault("host", parts["hostaddr"])
    return f"postgresql://?{urlencode(known, quote_via=quote)}"
