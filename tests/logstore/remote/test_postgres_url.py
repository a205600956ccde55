"""Addresses that libpq and asyncpg understand alike."""

from __future__ import annotations

import pytest
from asyncpg.connect_utils import _parse_connect_arguments

from logstore.remote.postgres_url import address_for_asyncpg


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://m:p%40w@db:5433/cluster", "postgresql://m:p%40w@db:5433/cluster"),
        (
            "postgresql://db/cluster?sslmode=require&connect_timeout=5&keepalives=1",
            "postgresql://db/cluster?sslmode=require",
        ),
        ("postgresql:///cluster?hostaddr=10.0.0.1", "postgresql:///cluster?host=10.0.0.1"),
        (
            "host=db port=5433 user=m dbname=cluster connect_timeout = 5",
            "postgresql://?host=db&port=5433&user=m&dbname=cluster",
        ),
        (
            "host=/run/pg user=m password='a b\\'c' dbname=x",
            "postgresql://?host=%2Frun%2Fpg&user=m&password=a+b%27c&dbname=x",
        ),
    ],
)
def test_what_libpq_alone_obeys_is_left_out(given: str, expected: str) -> None:
    assert address_for_asyncpg(given) == expected


def test_asyncpg_connects_to_what_the_pairs_say() -> None:
    url = address_for_asyncpg("host=db port=5433 user=m password='p w' dbname=cluster")
    addresses, parameters, _ = _parse_connect_arguments(
        dsn=url,
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
    assert addresses == [("db", 5433)]
    assert (parameters.user, parameters.password, parameters.database) == ("m", "p w", "cluster")
