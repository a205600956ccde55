"""A data directory that a cluster takes over, and a cluster that becomes a data directory."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from logstore.disk.checkpoints import CLEAN_SHUTDOWN
from logstore.remote.bucket import Bucket
from logstore.remote.commit_store import LogKey
from logstore.remote.hot_batches import batches_of
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.references import Reference
from logstore.segments.aborted_index import AbortedEntry, decode_entries
from magnetar.importing import still_logs
from magnetar.importing.into_cluster import import_into_cluster
from magnetar.importing.out_of_cluster import export_from_cluster
from magnetar.importing.source import ImportRefused, Progress
from magnetar.importing.still_logs import StillLog, parts
from magnetar.storage.catalog import Catalog
from magnetar.storage.cluster_objects import agreed_objects
from magnetar.storage.database import CatalogFailure
from magnetar.storage.placing import node_directories
from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.segment_files import Batch, read_batches, segments
from magnetar.storage.sqlite_database import FILE_NAME
from tests.logstore.partitions import batch_of
from tests.magnetar.importing.conftest import SEGMENT, at
from tests.magnetar.nodes_in_one import NodesInOne
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

KEY = LogKey(UUID(int=7), 0)


@contextmanager
def no_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


@contextmanager
def killed(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Ends the command once something is written."""

    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    yield stop


class Away(Bucket):
    """A bucket that does not answer."""

    async def read(self, key: str, position: int, size: int) -> bytes:
        raise ObjectsUnavailable(f"read {key}", "503")


# --- one log


def test_large_segments_are_divided_with_their_aborted_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = at(0, batch_of(b"x" * 100))
    monkeypatch.setattr(still_logs, "SEGMENT_BYTES", 2 * len(batch))
    monkeypatch.setattr(still_logs, "_CHUNK_BYTES", len(batch))
    # Compaction has left nothing at 3; the second file begins at 5.
    for base, offsets in ((0, (0, 1, 2, 4)), (5, (5, 6))):
        written = b"".join(at(offset, batch_of(b"x" * 100)) for offset in offsets)
        (tmp_path / SEGMENT.format(base)).write_bytes(written)
    entries = [AbortedEntry(1, 0, 1, 2), AbortedEntry(2, 0, 2, 3), AbortedEntry(3, 2, 4, 5)]
    index = b"".join(entry.encode() for entry in entries)
    (tmp_path / f"{0:020}.txnindex").write_bytes(index)
    (tmp_path / f"{7:020}.state").write_bytes(b"state")
    (tmp_path / "unknown").write_bytes(b"left behind")
    found = [*parts(StillLog(KEY, tmp_path, 1, 6))]
    chunks = [chunk for changes in found for chunk in changes.chunks]
    assert [(one.base_offset, one.end_offset) for one in chunks] == [
        *((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7))
    ]
    bounds = [(one.base_offset, one.end_offset) for each in found for one in each.segments]
    assert bounds == [(0, 2), (2, 5)], "the last one is active"
    (start,) = found[-1].starts
    assert start.start_offset == 1
    attached = {one.name: one.data or b"" for one in found[-1].attachments}
    assert attached.keys() == {
        *(f"{0:020}.txnindex", f"{2:020}.txnindex", f"{7:020}.state", "cleaner-offset")
    }
    assert decode_entries(attached[f"{0:020}.txnindex"]) == (entries[:1], True)
    assert decode_entries(attached[f"{2:020}.txnindex"]) == (entries[1:], True)


def test_a_log_that_has_lost_all_batches_keeps_its_end(tmp_path: Path) -> None:
    (tmp_path / SEGMENT.format(9)).touch()
    *_, last = parts(StillLog(KEY, tmp_path, 3, None))
    assert [start.start_offset for start in last.starts] == [9]


def test_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / SEGMENT.format(0)).write_bytes(at(0, batch_of(b"a"))[:-1])
    with pytest.raises(ImportRefused, match="is damaged at byte 0"):
        list(parts(StillLog(KEY, tmp_path, 0, None)))


# --- whole directories


def in_thread(progress: Progress) -> Progress:
    """Return the same progress, of which each step is made in a thread: a loop runs here."""

    @contextmanager
    def made(label: str, total: int) -> Iterator[Callable[[int], None]]:
        with progress(label, total) as advance, ThreadPoolExecutor(1) as thread:
            yield lambda count: thread.submit(advance, count).result()

    return made


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """The directory of two nodes that have ended, with 20 batches in `a-0` to `a-3`."""
    nodes = NodesInOne(tmp_path / "data")
    await nodes.start(2)
    for broker in nodes.nodes.values():
        topic = broker.topics.by_name("a")
        assert topic is not None
        for log in topic.local:
            for number in range(20):
                log.append(log.check(batch_of(b"%d" % number), 0))
            await log.durable(20)
    await nodes.stop()
    return tmp_path / "data"


def batches(*directories: Path) -> dict[str, bytes]:
    """Return the bytes of topic `a`, by partition."""
    return {
        path.name: b"".join(
            bytes(batch.data)
            for segment in segments(path)
            for batch in read_batches(segment)
            if isinstance(batch, Batch)
        )
        for directory in directories
        for path in directory.glob("a-?")
    }


def stored(url: str) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute("SELECT 1 FROM magnetar.chunks").fetchall())


async def imported(directory: Path, url: str) -> None:
    await asyncio.to_thread(import_into_cluster, directory, url, 5, no_progress)


async def test_an_import_changes_nothing_in_the_directory(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(stopped / FILE_NAME)) as catalog, catalog:
        catalog.execute("UPDATE topics SET name = name")
        catalog.commit()
        # Its write-ahead log lies there until the connection is closed.
        directory = shutil.copytree(stopped, tmp_path / "copied")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    before = files()
    assert before[directory / f"{FILE_NAME}-wal"]
    await imported(directory, postgres_url)
    assert files() == before


async def test_a_directory_of_nodes_goes_into_a_cluster_and_comes_out(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(import_into_cluster, stopped, postgres_url, 5, killed)
    with closing(Catalog(None, database=PostgresDatabase(postgres_url))) as catalog:
        assert catalog.topics() == [], "nothing of it is visible"
        assert len(catalog.deleted_topics()) == 3, "nodes would remove it"
    assert stored(postgres_url)
    await imported(stopped, postgres_url)
    with pytest.raises(ImportRefused, match="not empty"):
        await imported(stopped, postgres_url)
    with closing(Catalog(None, database=PostgresDatabase(postgres_url))) as catalog:
        epoch = catalog.nodes.epochs()[5]
        assert catalog.deleted_topics() == set()
        for row in catalog.topics():
            assert {(one.node_id, one.leader_epoch) for one in row.leaders} == {(5, epoch)}
            assert len(row.leaders) == row.partition_count
        # One chunk lies in a bucket.
        bucket_url = f"file://{tmp_path}/bucket"
        (tmp_path / "bucket").mkdir()
        agreed_objects(catalog, bucket_url, "place")
    bucket = Bucket(bucket_url)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT c.topic_id, partition, data FROM magnetar.chunks c"
            " WHERE octet_length(data) > 1000 LIMIT 1"
        ).fetchone()
        assert found is not None and next(iter(batches_of(found[2])))[0].base_offset == 0
        await bucket.put("logs/x", found[2])
        reference = Reference("logs/x", 0, len(found[2])).encode()
        connection.execute(
            "UPDATE magnetar.chunks SET data = %s WHERE topic_id = %s AND partition = %s",
            (reference, *found[:2]),
        )
    target = tmp_path / "target"
    (tmp_path / "target.partial").mkdir()
    (tmp_path / "target.partial" / "of an export that was killed").touch()
    # The export would lack that partition.
    with pytest.raises(ImportRefused, match="503"):
        await asyncio.to_thread(export_from_cluster, postgres_url, target, Away, no_progress)
    assert not target.exists()
    await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, no_progress)
    before = batches(stopped, *node_directories(stopped))
    assert len(before) == 4 and batches(target) == before
    assert not (tmp_path / "target.partial").exists()
    with closing(Catalog(stopped)) as first, closing(Catalog(target)) as second:
        assert first.cluster_id() == second.cluster_id()
        assert [row._replace(leaders=()) for row in first.topics()] == second.topics()
        assert second.next_broker_epoch() > epoch
        assert second.resource_configs() == {}
    with pytest.raises(ImportRefused, match="not empty"):
        await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, no_progress)


async def test_an_export_goes_into_another_cluster_as_it_is(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    await imported(stopped, postgres_url)
    target = tmp_path / "target"
    await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, no_progress)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP SCHEMA magnetar CASCADE")
    await imported(target, postgres_url)
    again = tmp_path / "again"
    await asyncio.to_thread(export_from_cluster, postgres_url, again, Bucket, no_progress)
    assert batches(again) == batches(stopped, *node_directories(stopped))
    # A broker was started on it, and killed: what it has written is not known to be whole.
    with closing(Catalog(again)) as catalog:
        catalog.next_broker_epoch()
    with pytest.raises(ImportRefused, match=f"not stopped cleanly.*serve --data-dir {again}"):
        await imported(again, postgres_url)


async def test_a_damaged_batch_is_not_exported(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    """The first start of the directory would cut the log off there, with all batches behind it."""
    await imported(stopped, postgres_url)
    with psycopg.connect(postgres_url) as connection:
        flipped = connection.execute(
            "UPDATE magnetar.chunks SET data = set_byte(data, 65, get_byte(data, 65) # 1)"
            " WHERE octet_length(data) > 1000 RETURNING base_offset"
        ).fetchall()
    assert flipped
    target = tmp_path / "target"
    with pytest.raises(ImportRefused, match="at offset 0 is damaged: its CRC does not match"):
        await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, no_progress)
    assert not target.exists()


async def test_another_import_does_not_remove_what_the_first_one_brings(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "copy")
    refused: list[str] = []

    @contextmanager
    def beside(label: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            with pytest.raises(ImportRefused) as raised:
                import_into_cluster(tmp_path / "copy", postgres_url, 5, no_progress)
            refused.append(str(raised.value))

        yield advance

    await asyncio.to_thread(import_into_cluster, stopped, postgres_url, 5, in_thread(beside))
    assert refused and all("another import" in each for each in refused)
    target = tmp_path / "target"
    await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, no_progress)
    assert batches(target) == batches(stopped, *node_directories(stopped))


async def test_an_import_that_did_not_keep_others_out_has_imported_nothing(
    stopped: Path, postgres_url: str
) -> None:
    @contextmanager
    def cut(label: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE application_name = 'magnetar catalog' AND datname = current_database()"
            )

    with pytest.raises(ImportRefused, match="was lost. Nothing was imported"):
        await asyncio.to_thread(import_into_cluster, stopped, postgres_url, 5, cut)
    with closing(Catalog(None, database=PostgresDatabase(postgres_url))) as catalog:
        assert catalog.topics() == []
    await imported(stopped, postgres_url)


async def test_another_export_does_not_remove_what_the_first_one_writes(
    stopped: Path, postgres_url: str, tmp_path: Path
) -> None:
    await imported(stopped, postgres_url)
    target, refused = tmp_path / "target", []

    @contextmanager
    def beside(label: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            with pytest.raises(ImportRefused, match="another export") as raised:
                export_from_cluster(postgres_url, target, Bucket, no_progress)
            refused.append(raised)

        yield advance

    await asyncio.to_thread(export_from_cluster, postgres_url, target, Bucket, in_thread(beside))
    assert refused and batches(target) == batches(stopped, *node_directories(stopped))


@pytest.mark.parametrize("version", [None, 3])
def test_an_export_neither_makes_a_cluster_nor_changes_its_tables(
    postgres_url: str, tmp_path: Path, version: int | None
) -> None:
    if version is not None:
        Catalog(None, database=PostgresDatabase(postgres_url)).close()
        with psycopg.connect(postgres_url) as connection:
            connection.execute("UPDATE magnetar.schema_version SET version = %s", (version,))
    with pytest.raises(CatalogFailure, match="has no cluster|an older magnetar"):
        export_from_cluster(postgres_url, tmp_path / "target", Bucket, no_progress)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT to_regnamespace('magnetar') IS NULL").fetchone()
        assert found == (version is None,)
    assert not [*tmp_path.iterdir()]


async def test_nodes_that_live_keep_an_export_away(postgres_url: str, tmp_path: Path) -> None:
    with closing(Catalog(None, database=PostgresDatabase(postgres_url))) as catalog:
        catalog.nodes.start(3)
    with pytest.raises(ImportRefused, match="nodes live: 3"):
        export_from_cluster(postgres_url, tmp_path / "target", Bucket, no_progress)
    assert not [*tmp_path.iterdir()]


async def test_a_broker_that_was_killed_is_not_imported(stopped: Path, postgres_url: str) -> None:
    for directory in node_directories(stopped):
        (directory / CLEAN_SHUTDOWN).unlink()
    with pytest.raises(ImportRefused, match="not stopped cleanly"):
        await imported(stopped, postgres_url)


async def test_a_partition_in_two_directories_is_not_imported(
    stopped: Path, postgres_url: str
) -> None:
    one, other = node_directories(stopped)[:2]
    partition = next(path for path in one.iterdir() if any(path.glob("*.log")))
    shutil.copytree(partition, other / partition.name)
    with pytest.raises(ImportRefused, match=f"{partition.name} lies in .* magnetar repair sets"):
        await imported(stopped, postgres_url)


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="has no catalog"):
        import_into_cluster(tmp_path, "postgresql://127.0.0.1:1/x", 1, no_progress)
