"""A cluster whose nodes are stopped, written into the data directory of a single broker.

Everything is written beside the directory first, `DIRECTORY.partial`, and gets its name last. So
what was killed is never taken for whole, and is started again from its beginning. The directory
looks as after a crash: the first start of its broker checks every batch and makes the indexes.
Until then another cluster takes it over as it is (`still_logs.is_untouched_export`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from logstore.directory.data_directory import LOCK, partition_name
from logstore.disk.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    Offsets,
    encode_offsets,
    encode_partition_metadata,
)
from logstore.disk.durability import Durability
from logstore.disk.files import lock_file
from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import LogKey, StoredLog, StoreUnavailable, Wanted
from logstore.remote.hot_batches import batches_of
from logstore.remote.object_store import ObjectStore
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.remote_directory import CLEANED, CLEANED_OFFSET
from logstore.remote.remote_ledger import MOVED_ONCE, MOVED_TO
from logstore.segments.names import LOG_SUFFIX, segment_path
from magnetar.config.load import ConfigError
from magnetar.importing.into_cluster import Copied, run_with_store
from magnetar.importing.source import ImportRefused, Progress
from magnetar.importing.staging import sync
from magnetar.importing.still_logs import EXPORTED, encode_exported
from magnetar.storage import catalog_contents
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_contents import Contents
from magnetar.storage.cluster_objects import RESOURCE, objects_url
from magnetar.storage.history import ClusterHalted, read_history
from magnetar.storage.postgres_database import PostgresDatabase, Tables
from magnetar.storage.sqlite_database import SqliteDatabase
from wire.records import BatchHeader, crc_ok
from wire.records.header import OFFSET_MAX

_READ_BYTES = 8 << 20


def export_from_cluster(
    url: str,
    directory: Path,
    open_bucket: Callable[[str], ObjectStore],
    progress: Progress,
) -> Copied:
    """Copy everything of a cluster into a directory that is not there, or empty.

    Raises ImportRefused, CatalogFailure, CatalogUnavailable, OSError.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ImportRefused(f"{directory} is not empty. Name a directory that is not there.")
    with closing(_opened(url)) as catalog:
        if loss := read_history(catalog.database).loss:
            # Nothing would tell of it any more where the copy is served.
            raise ImportRefused(str(ClusterHalted(loss)))
        _refuse_live(catalog)
        epochs, bucket = catalog.nodes.epochs(), objects_url(catalog)
        contents = catalog_contents.read(catalog.database).on_one_disk(RESOURCE)
    try:
        store = PostgresStore(url)
        logs = BulkStore(store, open_bucket(bucket) if bucket else None)
    except ConfigError as unusable:
        raise ImportRefused(str(unusable)) from unusable
    partial = directory.with_name(f"{directory.name}.partial")
    with _emptied(partial):
        copied = run_with_store(_write_logs(store, logs, contents, partial, progress))
        _write_catalog(partial, contents)
        (partial / EXPORTED).write_bytes(encode_exported(contents.epoch))
        # Nodes that started meanwhile have written what this copy lacks.
        with closing(_opened(url)) as catalog:
            if catalog.nodes.epochs() != epochs:
                raise ImportRefused("a node has started meanwhile. Stop it, and export again.")
            _refuse_live(catalog)
        _sync_all(partial)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    sync(directory.absolute().parent)
    return copied


def _opened(url: str) -> Catalog:
    return Catalog(None, is_shared=True, database=PostgresDatabase(url, tables=Tables.LEFT))


@contextmanager
def _emptied(directory: Path) -> Iterator[None]:
    """Keep a directory, which has its lock alone at first, from other exports."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        release = lock_file(str(directory / LOCK), create=True)
    except BlockingIOError:
        raise ImportRefused(
            f"another export is writing {directory}. Wait for its end, or name another directory."
        ) from None
    try:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        yield
    finally:
        release()


def _refuse_live(catalog: Catalog) -> None:
    live = [str(row.node_id) for row in catalog.nodes.members() if row.is_live]
    if live:
        raise ImportRefused(f"nodes live: {', '.join(live)}. Stop all of them first.")


async def _write_logs(
    store: PostgresStore,
    logs: BulkStore,
    contents: Contents,
    directory: Path,
    progress: Progress,
) -> Copied:
    starts: Offsets = {}
    dirty: Offsets = {}
    size_bytes = partitions = 0
    topics = [*contents.topics()]
    try:
        with progress("Exporting", sum(count for *_, count in topics)) as on_progress:
            for topic_id, name, count in topics:
                for index in range(count):
                    key = LogKey(topic_id, index)
                    (stored,) = await logs.load([Wanted(key)])
                    if stored.away:
                        # An export without some partition must not look like a whole one.
                        raise StoreUnavailable(stored.away)
                    target = directory / partition_name(name, index)
                    size_bytes += await _write_log(logs, key, stored, target)
                    partitions += target.exists()
                    if stored.start_offset:
                        starts[name, index] = stored.start_offset
                    if (cleaned := stored.attachments.get(CLEANED)) is not None:
                        (dirty[name, index],) = CLEANED_OFFSET.unpack(cleaned)
                    on_progress(1)
    finally:
        await store.close()
    (directory / LOG_START_OFFSETS).write_bytes(encode_offsets(starts))
    (directory / CLEANER_OFFSETS).write_bytes(encode_offsets(dirty))
    return Copied(len(topics), partitions, size_bytes)


async def _write_log(logs: BulkStore, key: LogKey, stored: StoredLog, directory: Path) -> int:
    """Write one partition; return the bytes of its batches. Raises ImportRefused."""
    bases = _bases(stored)
    if not bases:
        return 0
    directory.mkdir()
    (directory / PARTITION_METADATA).write_bytes(encode_partition_metadata(key.topic_id))
    for name, data in stored.attachments.items():
        if name not in (CLEANED, MOVED_ONCE, MOVED_TO, PARTITION_METADATA):
            (directory / name).write_bytes(data)
    for base_offset in bases:
        Path(segment_path(str(directory), base_offset, LOG_SUFFIX)).touch()
    size_bytes, offset, ends = 0, bases[0], [*bases[1:], OFFSET_MAX]
    while chunks := await logs.read(key, offset, _READ_BYTES, OFFSET_MAX):
        for chunk in chunks:
            for header, batch in batches_of(chunk.data):
                if header.next_offset <= offset:
                    continue
                _check_whole(directory.name, header, batch)
                # A chunk never reaches over the beginning of a segment, but segments may be empty.
                while header.base_offset >= ends[0]:
                    del ends[0], bases[0]
                with open(segment_path(str(directory), bases[0], LOG_SUFFIX), "ab") as file:
                    file.write(batch)
                size_bytes += len(batch)
        offset = chunks[-1].end_offset
    return size_bytes


def _check_whole(partition: str, header: BatchHeader, batch: bytes) -> None:
    """Raise ImportRefused for a damaged batch: the first start would take it for the log's end."""
    if not crc_ok(batch):
        raise ImportRefused(
            f"{partition}: the batch at offset {header.base_offset} is damaged: its CRC does not"
            " match. Bring it back: its object, from a version or a copy of the bucket (the names"
            " of objects have their offsets), or its row, from a copy of the database. If there is"
            " no other object, delete this one, and see `magnetar cluster repair`."
        )


def _bases(stored: StoredLog) -> list[int]:
    """Return where segments begin, the active one last; none of a log that never had a batch."""
    kept = [one for one in stored.segments if one.end_offset > stored.start_offset]
    if kept:
        return [*(one.base_offset for one in kept), kept[-1].end_offset]
    if stored.segments:
        return [stored.segments[-1].end_offset]
    if stored.first_offset is not None:
        return [stored.first_offset]
    return [stored.start_offset] if stored.start_offset else []


def _write_catalog(directory: Path, contents: Contents) -> None:
    with closing(SqliteDatabase(directory, Durability.FSYNC)) as database:
        database.open(contents.cluster_id)
        with database.transaction("enter everything") as queries:
            catalog_contents.write(queries, contents)


def _sync_all(directory: Path) -> None:
    """Make a directory durable, with everything in it."""
    for path, _, names in os.walk(directory):
        for name in names:
            with open(Path(path) / name, "rb") as file:
                os.fsync(file.fileno())
        sync(Path(path))
