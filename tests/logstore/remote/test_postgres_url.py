"""Addresses that libpq and asyncpg understand alike."""

from __future__ import annotations

from typing import Any

import pytest
from asyncpg.connect_utils import _parse_connect_arguments
from psycopg.conninfo import conninfo_to_dict

from logstore.remote.postgres_url import Hosts, address_for_asyncpg


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "postgresql://db/cluster?sslmode=require&connect_timeout=5&keepalives=1",
            {"host": "db", "dbname": "cluster", "sslmode": "require"},
        ),
        ("postgresql:///cluster?hostaddr=10.0.0.1", {"host": "10.0.0.1", "dbname": "cluster"}),
        (
            "host=db port=5433 user=m dbname=cluster connect_timeout = 5",
            {"host": "db", "port": "5433", "user": "m", "dbname": "cluster"},
        ),
        ("postgresql://", {}),
    ],
)
def test_what_libpq_alone_obeys_is_left_out(given: str, expected: dict[str, str]) -> None:
    assert conninfo_to_dict(address_for_asyncpg(given)) == expected


def test_no_parameter_of_libpq_becomes_a_setting_of_the_server() -> None:
    known = ["load_balance_hosts=random", "require_auth=none", "max_protocol_version=3.2"]
    given = f"postgresql://db/c?{'&'.join(known)}&options=-cgeqo%3Doff"
    assert _of_asyncpg(given)[1].server_settings == {"options": "-cgeqo=off"}


@pytest.mark.parametrize(
    "given",
    [
        "host=db port=5433 user='m@n' password='p w#/?+%' dbname=cluster",
        "postgresql://m%40n:p%20w%23%2F%3F%2B%25@db:5433/cluster",
        "postgresql://m%40n:p%20w#%2F?+%25@db:5433/cluster",
        "postgresql://m%40n@db:5433/cluster?password=p%20w#/?+%25",
        "postgres://db:5433/?dbname=cluster&user=m@n&password=p%20w%23/?+%25",
    ],
)
def test_asyncpg_connects_to_what_libpq_connects_to(given: str) -> None:
    as_libpq = conninfo_to_dict(given)
    addresses, parameters = _of_asyncpg(given)
    assert addresses == [(as_libpq["host"], int(str(as_libpq["port"])))] == [("db", 5433)]
    found = (parameters.user, parameters.password, parameters.database)
    assert found == (as_libpq["user"], as_libpq["password"], as_libpq["dbname"])
    assert found == ("m@n", "p w#/?+%", "cluster")


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://m@/cluster?host=/run/postgresql&port=5433",
        "postgresql://m@%2Frun%2Fpostgresql:5433/cluster",
        "host=/run/postgresql port=5433 user=m dbname=cluster",
    ],
)
def test_a_directory_as_the_host_is_that_of_a_unix_socket(given: str) -> None:
    addresses, parameters = _of_asyncpg(given)
    assert addresses == ["/run/postgresql/.s.PGSQL.5433"]
    assert (parameters.user, parameters.database) == ("m", "cluster")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://a:1,b:2/x", [("a", 1), ("b", 2)]),
        ("host=a,b port=3 dbname=x", [("a", 3), ("b", 3)]),
        ("host=a,b dbname=x", [("a", 5432), ("b", 5432)]),
        ("host=a,b hostaddr=10.0.0.1,10.0.0.2 port=1,2", [("a", 1), ("b", 2)]),
        ("hostaddr=10.0.0.1,10.0.0.2 port=1,2", [("10.0.0.1", 1), ("10.0.0.2", 2)]),
        ("host=a port=1", [("a", 1)]),
    ],
)
def test_several_hosts_have_an_address_each(given: str, expected: list[tuple[str, int]]) -> None:
    mark = " " if "=" in given else "?"
    found = [_of_asyncpg(one) for one in Hosts(f"{given}{mark}target_session_attrs=read-write")]
    assert [addresses for addresses, _ in found] == [[one] for one in expected]
    assert {rest.target_session_attrs.value for _, rest in found} == {"read-write"}


def test_the_host_that_served_last_is_asked_first() -> None:
    hosts = Hosts("host=a,b,c")
    first, second, third = hosts
    for address in hosts:
        if address == second:
            hosts.note_serving(address)
    assert [*hosts] == [second, first, third]


def _of_asyncpg(given: str) -> tuple[Any, Any]:
    """Return what asyncpg makes of an address: hosts and ports, and everything else."""
    addresses, parameters, _ = _parse_connect_arguments(
        dsn=address_for_asyncpg(given),
        **dict.fromkeys(
            ("host", "port", "user", "password", "passfile", "database", "ssl", "service",
             "servicefile", "direct_tls", "server_settings", "target_session_attrs", "krbsrvname",
             "gsslib"),
        ),
        command_timeout=None,
        statement_cache_size=0,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
    )  # fmt: skip
    return addresses, parameters
