"""Makes an address that libpq understands one for asyncpg; its hosts; and the settings of every
connection.

asyncpg reads only URLs, by rules of its own: it ends a password at `#`, and takes a parameter that
it does not know for a setting of the server, which then refuses the connection. So libpq reads the
address here, and asyncpg gets each part that it knows as a parameter.
Source: PostgreSQL, "Database Connection Control Functions", section on connection strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict, make_conninfo

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


class Hosts:
    """The hosts of an address, each with the rest of it: the one that served last comes first.

    A host that has vanished refuses no connection, so each waits for its time limit there. asyncpg
    would give all hosts together one limit, and would never reach those behind it.
    """

    def __init__(self, given: str) -> None:
        """`given`: as `address_for_asyncpg` has it."""
        self._addresses = _each_host(given)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._addresses])

    def note_serving(self, address: str) -> None:
        """Let this one be the first from now on."""
        self._addresses.remove(address)
        self._addresses.insert(0, address)


def _each_host(given: str) -> list[str]:
    """Return an address for each host that an address names, in their order."""
    named: dict[str, list[str]] = {
        name: str(value).split(",")
        for name, value in conninfo_to_dict(given).items()
        if name in ("host", "hostaddr", "port")
    }
    count = max((len(each) for name, each in named.items() if name != "port"), default=1)
    if len(named.get("port", ())) == 1:
        named["port"] *= count
    if count == 1 or any(len(each) != count for each in named.values()):
        return [given]  # There is one, or libpq says what is wrong with them.
    return [
        make_conninfo(given, **{name: each[number] for name, each in named.items()})
        for number in range(count)
    ]


def address_for_asyncpg(given: str) -> str:
    """Return the same address as a URL that asyncpg obeys. `given`: a URL, or key=value pairs.

    Raises psycopg.ProgrammingError if `given` is neither; its message has the whole of `given`.
    """
    parts = {name: str(value) for name, value in conninfo_to_dict(given).items()}
    known = {name: value for name, value in parts.items() if name in _OBEYED_BY_ASYNCPG}
    if "hostaddr" in parts:
        known.setdefault("host", parts["hostaddr"])
    return f"postgresql://?{urlencode(known, quote_via=quote)}"
