"""A stopped broker's data directory, taken over by a cluster in PostgreSQL that is empty.

First the logs are written, under ids of topics that the catalog does not know; then one transaction
enters everything into the catalog. Until then nothing is visible, and an import that was killed is
started again from its beginning. Nothing in the directory changes.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from logstore.disk.durability import Durability
from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.postgres_store import PostgresStore
from magnetar.importing.source import ImportRefused, OnProgress, Progress, held
from magnetar.importing.still_logs import StillLog, parts, size_bytes, still_logs
from magnetar.storage import catalog_contents
from magnetar.storage.catalog_contents import Contents
from magnetar.storage.database import Queries
from magnetar.storage.placing import node_directories, refusal_of_part
from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.sqlite_database import FILE_NAME, SqliteDatabase

Result = TypeVar("Result")

_NOT_EMPTY = (
    "this cluster is not empty: nodes have started, or topics are there. Import into an empty"
    " database, before the first node."
)
#: Any number that no other program uses: the session that imports holds it.
_IMPORT_LOCK = 7_236_514_400_913


class Copied(NamedTuple):
    """What was copied."""

    topics: int
    partitions: int
    size_bytes: int


def import_into_cluster(data_dir: Path, url: str, node_id: int, progress: Progress) -> Copied:
    """Copy everything of a stopped broker into an empty cluster, whose node `node_id` is to lead.

    Raises ImportRefused, CatalogFailure, CatalogUnavailable, OSError.
    """
    if (refusal := refusal_of_part(data_dir)) is not None:
        raise ImportRefused(refusal)
    if not (data_dir / FILE_NAME).exists():
        raise ImportRefused(
            f"{data_dir} has no catalog: it is no data directory of magnetar. A directory of Kafka"
            " comes over by `magnetar import` first."
        )
    with ExitStack() as locks:
        for path in (data_dir, *node_directories(data_dir)):
            locks.enter_context(held(path, create=True))
        contents = _contents_of(data_dir)
        topics = {name: topic_id for topic_id, name, _ in contents.topics()}
        logs = still_logs(data_dir, topics, contents.epoch)
        with closing(PostgresDatabase(url)) as target:
            target.open(contents.cluster_id)
            with target.transaction("begin an import") as queries:
                if not catalog_contents.is_empty(queries):
                    raise ImportRefused(_NOT_EMPTY)
                _keep_others_out(queries)
                catalog_contents.announce(queries, contents)
            total = sum(map(size_bytes, logs))
            with progress("Importing", total) as on_progress:
                run_with_store(_fill(url, logs, on_progress))
            with target.transaction("enter everything") as queries:
                _refuse_another(queries)
                # A node may have started meanwhile.
                if not catalog_contents.is_empty(queries):
                    raise ImportRefused(_NOT_EMPTY)
                catalog_contents.write(queries, contents)
                catalog_contents.lead_by(queries, contents, node_id)
        return Copied(len(contents.tables[0]), len(logs), total)


def _keep_others_out(queries: Queries) -> None:
    """Let this session alone import: another import would begin by removing what this one brings.

    Raises ImportRefused.
    """
    row = queries.execute("SELECT pg_try_advisory_lock(?)", (_IMPORT_LOCK,)).fetchone()
    if not row[0]:
        raise ImportRefused(
            "another import into this cluster is under way. Wait for its end, or stop it first."
        )


def _refuse_another(queries: Queries) -> None:
    """Raise ImportRefused if another import may have begun: the connection was made again."""
    row = queries.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        " AND (classid::bigint << 32 | objid::bigint) = ?",
        (_IMPORT_LOCK,),
    ).fetchone()
    if not row[0]:
        raise ImportRefused(
            "the connection that kept other imports out was lost. Nothing was imported: give the"
            " same command again."
        )


def _contents_of(data_dir: Path) -> Contents:
    # Read from a copy: SQLite would take in the write-ahead log of a catalog that it opens and
    # closes, and the tables of an older release would be brought up to date.
    with TemporaryDirectory(prefix="magnetar-catalog-") as copy:
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            if (data_dir / name).exists():
                shutil.copy(data_dir / name, copy)
        with closing(SqliteDatabase(Path(copy), Durability.PAGE_CACHE)) as database:
            database.open("")
            return catalog_contents.read(database)


def run_with_store(work: Coroutine[None, None, Result]) -> Result:
    """Run what reads or writes a store. Raises ImportRefused where it does not answer."""
    try:
        return asyncio.run(work)
    except StoreUnavailable as away:
        raise ImportRefused(
            f"the database, or the bucket, does not answer: {away}. Give the same command again."
        ) from away


async def _fill(url: str, logs: list[StillLog], on_progress: OnProgress) -> None:
    store = PostgresStore(url)
    try:
        # What an import that was killed has left.
        await store.clear()
        for log in logs:
            for changes in parts(log):
                await store.fill(changes)
                on_progress(sum(len(chunk.data) for chunk in changes.chunks))
    finally:
        await store.close()
