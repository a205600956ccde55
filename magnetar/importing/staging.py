"""Carrying out a plan, so that an interruption at any point loses nothing and leaves nothing half.

    DATA/.import/<topic>-<n>/    copies; a broker does not look in there
    DATA/.import/plan.json       written last, durably: the decision that the import has happened

Before the decision nothing has changed, and the next import goes on with the copies that are whole.
After it, `finish` moves the copies to their places and enters the topics into the catalog. `finish`
may be interrupted: the next import or the next start of a broker repeats it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    decode_offsets,
    encode_offsets,
)
from magnetar.importing.plan import Plan
from magnetar.importing.source import ImportRefused, OnProgress
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere, Placement
from magnetar.storage.segment_files import segments

STAGING = ".import"
PLAN = f"{STAGING}/plan.json"
_CHUNK_BYTES = 4 << 20
#: Room that the copies leave free on the disk.
_SPARE_BYTES = 64 << 20
#: Anything else in a partition's directory is left behind: files that Kafka is about to delete or
#: swap.
_KEPT = frozenset({LEADER_EPOCHS, PARTITION_METADATA})
#: The unit of st_blocks, whatever the file system's own is.
_BLOCK_BYTES = 512
_KEPT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".state")


class StagedFile(NamedTuple):
    """A file to copy, or to link if it is never written to again."""

    source: Path
    target: Path
    size_bytes: int
    may_link: bool


def files_of(plan: Plan, data_dir: Path, *, link: bool) -> list[StagedFile]:
    """Return every file of the plan's topics.

    With `link`, segments below the recovery point are linked: a broker only reads and deletes them.
    The last segments, which a broker goes on writing, and the small files are always copied.
    """
    found = []
    for topic in plan.topics:
        for index, directory in sorted(topic.directories.items()):
            # Without --link nothing is closed, so that everything is copied.
            point = plan.recovery_points.get((topic.row.name, index), 0) if link else 0
            closed = _closed(directory, point)
            target = data_dir / STAGING / directory.name
            for path in sorted(directory.iterdir()):
                if path.name in _KEPT or path.suffix in _KEPT_SUFFIXES:
                    size_bytes = _real_bytes(path)
                    found.append(StagedFile(path, target / path.name, size_bytes, path in closed))
    return found


def _real_bytes(path: Path) -> int:
    """Return what the file takes on its disk, where that is less than its length."""
    status = path.stat()
    return min(status.st_size, status.st_blocks * _BLOCK_BYTES)


def _closed(directory: Path, recovery_point: int) -> set[Path]:
    paths = segments(directory)
    return {
        path
        for path, following in zip(paths, paths[1:], strict=False)
        if int(following.stem) <= recovery_point
    }


def stage(files: list[StagedFile], data_dir: Path, on_progress: OnProgress) -> None:
    """Copy or link all files below the staging directory, durably. ImportRefused: no room."""
    needed = sum(file.size_bytes for file in files if not file.may_link)
    free = shutil.disk_usage(data_dir).free
    if needed + _SPARE_BYTES > free:
        raise ImportRefused(
            f"{needed >> 20} MiB are to be copied, and {data_dir} has {free >> 20} MiB left."
            " --link copies less if both directories are on one disk."
        )
    _remove_unwanted(data_dir / STAGING, {file.target for file in files})
    for directory in sorted({file.target.parent for file in files}):
        directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not _is_there(file):
            file.target.unlink(missing_ok=True)
            if not (file.may_link and _linked(file)):
                _copy(file)
        on_progress(file.size_bytes)
    # The names too: a synced file whose name is lost is lost.
    for directory in sorted({file.target.parent for file in files}):
        sync(directory)
    sync(data_dir / STAGING)


def _remove_unwanted(staging: Path, wanted: set[Path]) -> None:
    """Remove the copies of an earlier, interrupted import that this one does not need."""
    if staging.is_dir():
        for directory in staging.iterdir():
            for path in directory.iterdir() if directory.is_dir() else ():
                if path not in wanted:
                    path.unlink()
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()


def _is_there(file: StagedFile) -> bool:
    """Return whether an earlier import copied the file whole.

    A copy gets the time of its source once all of its bytes are durable.
    """
    try:
        there, source = file.target.stat(), file.source.stat()
    except FileNotFoundError:
        return False
    return (there.st_size, there.st_mtime_ns) == (source.st_size, source.st_mtime_ns)


def _linked(file: StagedFile) -> bool:
    try:
        os.link(file.source, file.target)
    except OSError:
        return False  # The target is on another disk, or on one without links.
    with file.target.open("rb") as target:
        os.fsync(target.fileno())  # A Kafka that was killed may not have synced it.
    return True


def _copy(file: StagedFile) -> None:
    with file.source.open("rb") as source, file.target.open("wb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            # A hole stays a hole: Kafka allocates 10 MB for each index in advance.
            written = target.write(chunk.rstrip(b"\0"))
            target.seek(len(chunk) - written, os.SEEK_CUR)
        target.truncate()
        target.flush()
        os.fsync(target.fileno())
    # Last, after the sync: the time of the source is what `_is_there` takes for "whole".
    shutil.copystat(file.source, file.target)


def decide(plan: Plan, data_dir: Path) -> None:
    """Write the plan durably. This is the decision: from now on the staged files are imported."""
    staging = data_dir / STAGING
    staging.mkdir(exist_ok=True)
    _replace(data_dir / PLAN, plan.encode())
    sync(data_dir)


def finish(data_dir: Path, catalog: Catalog) -> Plan | None:
    """Carry out the plan in a data directory, if there is one, and return it.

    The caller holds the directory's lock, and has opened no log.
    """
    try:
        plan = Plan.decode((data_dir / PLAN).read_bytes())
    except FileNotFoundError:
        return None
    for source in _staged(data_dir):
        target = data_dir / source.name
        # Never replaced: the directory may hold another topic's only copy.
        if target.exists():
            raise ImportRefused(f"{target} is in the way of {source}. Move one of them aside.")
        source.rename(target)
    sync(data_dir)
    _merge(data_dir / RECOVERY_POINTS, plan.recovery_points)
    _merge(data_dir / LOG_START_OFFSETS, plan.start_offsets)
    if not plan.is_clean:
        # Durably, and before the plan is deleted: otherwise recovery would trust a torn log.
        (data_dir / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        sync(data_dir)
    _enter(plan, catalog)
    # Last: as long as the plan is there, a start repeats all of the above.
    (data_dir / PLAN).unlink()
    (data_dir / STAGING).rmdir()
    sync(data_dir)
    return plan


def _staged(data_dir: Path) -> Iterator[Path]:
    return (path for path in sorted((data_dir / STAGING).iterdir()) if path.is_dir())


def _enter(plan: Plan, catalog: Catalog) -> None:
    known = {row.id for row in catalog.topics()}
    nodes = sorted(catalog.nodes.epochs())
    for topic in plan.topics:
        # An interruption may have come after some of them: `finish` is repeated whole.
        if topic.row.id not in known:
            catalog.add_topic(_led(topic.row, nodes))
    catalog.reserve_producer_ids_below(plan.next_producer_id)
    catalog.raise_broker_epoch(plan.epoch)


def _led(row: TopicRow, nodes: Sequence[int]) -> TopicRow:
    """Return a topic with the leaders of its partitions, if several nodes have the directory.

    So the next start moves these partitions, and leaves all others with their leaders.
    """
    if not nodes:
        return row
    leaders, _ = Placement(nodes[0], nodes).of_new(row.id, 0, row.partition_count)
    return row._replace(leaders=tuple(Elsewhere(node_id, 0) for node_id in leaders))


def _merge(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    try:
        present: Offsets = decode_offsets(path.read_bytes())
    except (FileNotFoundError, CorruptCheckpoint):
        present = {}
    if offsets:
        _replace(path, encode_offsets({**present, **offsets}))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
