"""`magnetar cluster doctor` names what breaks a cluster's promises, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from logstore.remote.bucket import Bucket
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.references import Reference
from logstore.remote.remote_ledger import MOVED_TO
from magnetar.config.load import ConfigError
from magnetar.storage import cluster_checks
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import PEERS, PEERS_IN_TLS, NodeRow, Presence
from magnetar.storage.cluster_checks import Finding, Verdict, check, network_of_peers
from magnetar.storage.cluster_objects import agreed_objects, objects_prefix, objects_url
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.history import halt
from magnetar.storage.postgres_database import PostgresDatabase
from tests.magnetar.storage.test_shared_catalog import row
from wire.records import SimpleRecord, build_batch


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def found(url: str, text: str) -> Finding:
    return next(finding for finding in check(url) if text in finding.what)


def test_an_empty_database_is_ready_for_a_cluster(postgres_url: str) -> None:
    assert found(postgres_url, "no cluster yet").verdict is Verdict.DOUBTFUL
    assert not any(finding.verdict is Verdict.BAD for finding in _but_fsync(postgres_url))
    # Looking has made nothing.
    assert found(postgres_url, "no cluster yet").mend


def _but_fsync(url: str) -> list[Finding]:
    """Return the findings without that of the tests' server, which syncs nothing."""
    findings = [*check(url)]
    (unsafe,) = (finding for finding in findings if finding.what.startswith("fsync"))
    assert unsafe.verdict is Verdict.BAD and "fsync = on" in unsafe.mend
    findings.remove(unsafe)
    return findings


def test_a_server_that_has_one_connection_left_is_looked_at(postgres_url: str) -> None:
    run(postgres_url, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
    url = postgres_url.replace("postgres@", "narrow@")
    # At once: the server counts a connection for a while after its end.
    findings = [*check(url)]
    (second,) = (each for each in findings if "no second connection" in each.what)
    assert second.verdict is Verdict.BAD
    assert any("no cluster yet" in each.what for each in findings)


def test_a_database_whose_commits_do_not_wait_is_overruled(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    run(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    assert found(postgres_url, "synchronous_commit = on").verdict is Verdict.GOOD


def test_a_database_that_takes_no_writes_is_told(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    run(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    told = found(postgres_url, "default_transaction_read_only = on")
    assert told.verdict is Verdict.BAD and "nodes wait" in told.what


def test_a_role_that_may_make_no_tables_is_told(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    run(postgres_url, f"CREATE ROLE guest_of_{name} LOGIN")
    told = found(postgres_url.replace("postgres@", f"guest_of_{name}@"), "no cluster yet")
    assert told.verdict is Verdict.BAD and "GRANT CREATE" in told.mend


def test_nodes_that_are_gone_and_still_lead_are_named(postgres_url: str) -> None:
    catalog = Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))
    for node_id in (1, 2):
        incarnation = catalog.nodes.start(node_id, Presence("here", {}, "", "0.0.9"))
    catalog.add_topic(row("a", 1, 2))
    catalog.nodes.end_lease(2, incarnation)
    assert found(postgres_url, "nodes live").what == "1 of 2 nodes live"
    assert found(postgres_url, "still lead").what.startswith("nodes 2 are gone")
    assert "0.0.9" in found(postgres_url, "several versions").what
    catalog.close()


def test_a_server_that_cannot_be_reached_is_one_line() -> None:
    with pytest.raises(CatalogUnavailable) as raised:
        next(check("postgresql://user@127.0.0.1:1,127.0.0.1:2/x"))
    assert "\n" not in raised.value.detail


def test_the_bucket_is_tried(postgres_url: str, tmp_path: Path) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, "", "place")
    assert not [each for each in check(postgres_url) if "bucket" in each.what]
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}/objects", "place")
    assert found(postgres_url, "the bucket").verdict is Verdict.GOOD
    assert not [*tmp_path.glob("objects/doctor/*")]
    shutil.rmtree(tmp_path / "objects")
    (tmp_path / "objects").touch()
    told = found(postgres_url, "the bucket")
    assert told.verdict is Verdict.BAD and "policy" in told.mend


def test_a_bucket_that_refuses_ends_with_the_same_wait_as_one_that_takes_all(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wait the process may be aborted, and its exit code is none of ours."""
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}/objects", "place")
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "doctor").touch()
    events: list[str] = []
    trial, sleep = cluster_checks._try_bucket, asyncio.sleep

    async def try_bucket(bucket: Bucket) -> None:
        try:
            await trial(bucket)
        finally:
            events.append("trial")

    async def wait(delay_s: float) -> None:
        events.append("wait")
        await sleep(delay_s)

    monkeypatch.setattr(cluster_checks, "_try_bucket", try_bucket)
    monkeypatch.setattr(asyncio, "sleep", wait)
    assert found(postgres_url, "the bucket").verdict is Verdict.BAD
    assert events == ["trial", "wait"]


def test_objects_that_rows_name_and_that_are_gone_or_too_short_are_told(
    postgres_url: str, tmp_path: Path
) -> None:
    topic, names = row("metals", 1), ("a", "b", "c", "d")
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}", "place")
        catalog.add_topic(topic)
        directory = tmp_path / objects_prefix(catalog) / str(topic.id) / "0"
        keys = {
            name: f"{objects_prefix(catalog)}/{topic.id}/0/{base:020}-{base + 10:020}-7-{base}"
            for base, name in enumerate(names)
        }
        with catalog.database.transaction("move") as queries:
            moved = "INSERT INTO attachments VALUES (?, 0, ?, ?)"
            queries.execute(moved, (topic.id, MOVED_TO, b"1"))
            for base, name in enumerate(names[:3]):
                for half in (0, 1):
                    data = Reference(keys[name], 50 * half, 50).encode()
                    at = 10 * base + 5 * half
                    chunk = "INSERT INTO chunks VALUES (?, 0, ?, ?, ?)"
                    queries.execute(chunk, (topic.id, at, at + 5, data))
    directory.mkdir(parents=True)
    for name in names:
        (tmp_path / keys[name]).write_bytes(bytes(100))
    whole = found(postgres_url, "objects that rows name")
    assert whole.verdict is Verdict.GOOD
    assert "all 3 objects" in whole.what and "1 that no row names" in whole.what
    (tmp_path / keys["a"]).unlink()
    (tmp_path / keys["c"]).write_bytes(bytes(99))
    told = found(postgres_url, "objects that rows name")
    assert told.verdict is Verdict.BAD and "2 of the 3 objects" in told.what
    assert keys["a"] in told.what and "metals-0" in told.what


def test_bytes_that_have_changed_in_the_bucket_are_found_by_reading_it(
    postgres_url: str, tmp_path: Path
) -> None:
    topic = row("metals", 1)
    batch = build_batch([SimpleRecord(b"k", b"value", 5)], base_offset=0)
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}", "place")
        catalog.add_topic(topic)
        prefix = f"{objects_prefix(catalog)}/{topic.id}/0"
        keys = [f"{prefix}/{base:020}-{base + 2:020}-7-{base}" for base in (0, 2, 4)]
        with catalog.database.transaction("move") as queries:
            attached = "INSERT INTO attachments VALUES (?, 0, ?, ?)"
            queries.execute(attached, (topic.id, MOVED_TO, b"6"))
            for number, key in enumerate(keys):
                data = Reference(key, 0, 2 * len(batch)).encode()
                values = (topic.id, 2 * number, 2 * number + 2, data)
                queries.execute("INSERT INTO chunks VALUES (?, 0, ?, ?, ?)", values)
    (tmp_path / prefix).mkdir(parents=True)
    for key in keys[:2]:
        (tmp_path / key).write_bytes(batch * 2)

    def told(text: str) -> Finding:
        return next(each for each in check(postgres_url, reads_objects=True) if text in each.what)

    assert told("each batch in the bucket").verdict is Verdict.GOOD, "one that is gone is told of"
    assert told("are missing").verdict is Verdict.BAD
    (tmp_path / keys[1]).write_bytes(batch + batch[:-1] + b"x")
    assert f"{keys[1]} (at byte {len(batch)})" in told("1 objects have batches").what
    assert not [each for each in check(postgres_url) if "CRC" in each.what]


def test_a_failure_leaves_nothing_of_the_trial_in_the_bucket(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}", "place")

    async def refuse(*_: object) -> bytes:
        raise ObjectsUnavailable("read doctor", "403")

    monkeypatch.setattr(Bucket, "read", refuse)
    assert found(postgres_url, "403").verdict is Verdict.BAD
    assert not [*tmp_path.glob("doctor/*")]


def test_the_first_bucket_is_the_clusters_once_it_has_something(postgres_url: str) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        assert agreed_objects(catalog, "", "place") == ""
        assert agreed_objects(catalog, "a mistake", "place") == "a mistake"
        assert agreed_objects(catalog, "s3://a/b", "place") == "s3://a/b"
        assert agreed_objects(catalog, "", "place") == "s3://a/b"
        assert agreed_objects(catalog, "s3://a/b", "place") == "s3://a/b"
        with catalog.database.transaction("move something") as queries:
            moved = "INSERT INTO attachments SELECT gen_random_uuid(), 0, ?, ?"
            queries.execute(moved, (MOVED_TO, b"1"))
        with pytest.raises(ConfigError, match="keeps its objects at s3://a/b"):
            agreed_objects(catalog, "s3://another", "place")
        assert objects_url(catalog) == "s3://a/b"


def test_a_bucket_stays_while_another_place_has_nodes(postgres_url: str) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        catalog.nodes.claim("place", [1])
        assert agreed_objects(catalog, "s3://a/b", "place") == "s3://a/b"
        catalog.nodes.claim("other", [2])
        with pytest.raises(ConfigError, match="no other node lives"):
            agreed_objects(catalog, "s3://c", "other")
        catalog.nodes.start(2, Presence("other", {}, "", ""))
        with pytest.raises(ConfigError, match="no other node lives"):
            agreed_objects(catalog, "s3://c", "place")


def test_two_databases_have_no_object_in_common(postgres_url: str) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        prefix = objects_prefix(catalog)
        assert objects_prefix(catalog) == prefix
        # As an import makes it: the id comes along.
        with closing(Catalog(None, cluster_id=catalog.cluster_id())) as other:
            assert other.cluster_id() == catalog.cluster_id()
            assert objects_prefix(other) != prefix


def test_a_cluster_that_has_halted_is_told_with_the_way_out(postgres_url: str) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        halt(catalog.database, "commit 7 of node 1")
    told = found(postgres_url, "has halted")
    assert told.verdict is Verdict.BAD
    assert "commit 7 of node 1" in told.what and "--accept-loss" in told.mend


def node(node_id: int, host: str, *, has_tls: bool = False) -> NodeRow:
    peers = {name: (host, 1) for name in ((PEERS, PEERS_IN_TLS) if has_tls else (PEERS,))}
    return NodeRow(node_id, 0, True, Presence(f"{host}:/data", peers, "", "1"))


def test_plain_text_between_hosts_is_doubtful_and_a_mixture_bad() -> None:
    assert [*network_of_peers([node(1, "a"), node(2, "a")])] == []
    (plain,) = network_of_peers([node(1, "a"), node(2, "b")])
    assert plain.verdict is Verdict.DOUBTFUL and "nodes on a, b" in plain.what
    (encrypted,) = network_of_peers([node(1, "a", has_tls=True), node(2, "b", has_tls=True)])
    assert encrypted.verdict is Verdict.GOOD
    (mixed,) = network_of_peers([node(1, "a", has_tls=True), node(2, "b"), node(3, "c")])
    assert mixed.verdict is Verdict.BAD
    assert mixed.what.startswith("nodes 1 speak TLS to their peers, nodes 2, 3 do not")
