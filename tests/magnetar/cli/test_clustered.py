"""What a supervisor of a cluster's nodes does before they start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from magnetar.cli import clustered
from magnetar.cli.clustered import Place, joined, open_catalog
from magnetar.cli.workers import close_others
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError, Given, load
from magnetar.storage.catalog_rows import Presence
from magnetar.storage.postgres_database import PostgresDatabase

#: Nothing listens there.
_AWAY = "postgresql://postgres@127.0.0.1:1/postgres"


def config_of(url: str, directory: Path, patience_ms: int = 60_000) -> BrokerConfig:
    values = {
        "cluster.storage": url,
        "log.dirs": str(directory),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "initial.broker.registration.timeout.ms": str(patience_ms),
    }
    return load([Given(name, value, "test") for name, value in values.items()]).config


@contextmanager
def starting(config: BrokerConfig) -> Iterator[Place]:
    """A place of one node, whose process does not start."""
    with joined(config, 1) as place:
        close_others(-1, place.nodes)
        for bound in place.peers.values():
            bound.close()
        yield place


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a start has waited, each time, where it would have."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_a_start_waits_for_a_database_that_starts_too(
    postgres_url: str, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = iter([_AWAY, _AWAY, postgres_url])
    monkeypatch.setattr(clustered, "_database", lambda *_: PostgresDatabase(next(urls)))
    with starting(config_of(_AWAY, tmp_path)) as place:
        assert len(place.nodes) == 1
    assert len(waits) == 2


def test_a_database_that_comes_back_right_after_it_was_asked_refuses_nothing(
    postgres_url: str, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = iter([_AWAY, postgres_url])
    monkeypatch.setattr(clustered, "_database", lambda *_: PostgresDatabase(next(urls)))
    with starting(config_of(postgres_url, tmp_path)) as place:
        assert len(place.nodes) == 1
    assert not waits


# Kafka takes any whole number.
@pytest.mark.parametrize("patience_ms", [0, -1])
def test_a_start_does_not_wait_for_ever(
    tmp_path: Path, waits: list[float], patience_ms: int
) -> None:
    config = config_of(_AWAY, tmp_path, patience_ms)
    with pytest.raises(ConfigError, match="Connection refused"), starting(config):
        pass
    assert not waits


def test_a_start_does_not_wait_where_it_is_refused(
    postgres_url: str, tmp_path: Path, waits: list[float]
) -> None:
    config = config_of(f"{postgres_url.rpartition('/')[0]}/nothing", tmp_path)
    with pytest.raises(ConfigError, match='database "nothing" does not exist'), starting(config):
        pass
    assert not waits


def test_a_database_that_does_not_answer_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "^--storage: catalog .*: cannot connect: connection .* Connection refused"
    config = config_of(_AWAY, tmp_path, 500)
    with pytest.raises(ConfigError, match=told) as raised, starting(config):
        raise AssertionError("it has started")
    assert str(raised.value).count("postgresql://") == 1
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["gives_up_after_s"]) == ("the start waits for the database", 0.5)


@pytest.mark.parametrize("left", [0, 1])
def test_a_start_waits_for_a_server_that_has_too_few_connections_left(
    postgres_url: str, tmp_path: Path, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Connections of a node that was killed a moment ago are still counted."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        # All databases of the server see a role, those of other tests too.
        admin.execute(f"CREATE ROLE scarce{left} LOGIN CONNECTION LIMIT {left}")
    config = config_of(postgres_url.replace("postgres@", f"scarce{left}@"), tmp_path, 500)
    with pytest.raises(ConfigError, match="too many connections"), starting(config):
        raise AssertionError("it has started")
    assert "the start waits for the database" in capsys.readouterr().err


def test_a_killed_node_starts_with_a_newer_release_before_its_lease_ends(
    postgres_url: str, tmp_path: Path
) -> None:
    config = config_of(postgres_url, tmp_path)
    with starting(config) as place:
        killed = Presence(place.owner, {}, "", "0.9")
    with closing(open_catalog(postgres_url)) as catalog:
        catalog.nodes.start(next(iter(place.nodes)), killed)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = magnetar; DROP FUNCTION is_leased")
        connection.execute("UPDATE schema_version SET version = version - 1")
    with starting(config) as again:
        assert list(again.nodes) == list(place.nodes)
