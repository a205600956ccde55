"""What a supervisor of a cluster's nodes does before they start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from magnetar.cli.clustered import Place, joined, open_catalog
from magnetar.cli.workers import close_others
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import Given, load
from magnetar.storage.catalog_rows import Presence


@contextmanager
def starting(config: BrokerConfig) -> Iterator[Place]:
    """A place of one node, whose process does not start."""
    with joined(config, 1) as place:
        close_others(-1, place.nodes)
        for bound in place.peers.values():
            bound.close()
        yield place


def test_a_killed_node_starts_with_a_newer_release_before_its_lease_ends(
    postgres_url: str, tmp_path: Path
) -> None:
    values = {
        "cluster.storage": postgres_url,
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }
    config = load([Given(name, value, "test") for name, value in values.items()]).config
    with starting(config) as place:
        killed = Presence(place.owner, {}, "", "0.9")
    with closing(open_catalog(postgres_url)) as catalog:
        catalog.start_node(next(iter(place.nodes)), killed)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = magnetar; DROP FUNCTION is_leased")
        connection.execute("UPDATE schema_version SET version = version - 1")
    with starting(config) as again:
        assert list(again.nodes) == list(place.nodes)
