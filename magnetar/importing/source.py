"""A data directory of Apache Kafka: its partitions by topic, its checkpoints, its lock.

Reads names and small files only; `scan` reads the logs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from logstore.directory.data_directory import LOCK, split_partition_name
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    UnknownVersion,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
)
from logstore.disk.files import lock_file
from logstore.segments.names import SWAP
from magnetar.importing.metadata_log import ClusterMetadata, read_cluster_metadata
from magnetar.storage.topic_names import METADATA_DIRECTORY
from wire.errors import WireError

#: Is told how much more is done, in bytes or partitions.
OnProgress = Callable[[int], None]
#: (name of the step, how much there is to do) -> a context that yields what to tell of progress.
Progress = Callable[[str, int], AbstractContextManager[OnProgress]]


class ImportRefused(Exception):
    """Nothing was imported; the message says why, and what to do."""


@dataclass
class FoundTopic:
    """A topic, with those of its partitions that lie here."""

    name: str
    directories: dict[int, Path] = field(default_factory=dict)
    topic_ids: set[UUID] = field(default_factory=set)
    is_swapping: bool = False


@dataclass
class Source:
    """The contents of a stopped broker's data directories."""

    cluster_id: str | None
    is_clean: bool
    recovery_points: Offsets
    start_offsets: Offsets
    topics: dict[str, FoundTopic]
    #: None if there is no metadata log.
    metadata: ClusterMetadata | None


@contextmanager
def held(directory: Path, *, create: bool = False) -> Iterator[None]:
    """Keep brokers out of a data directory. ImportRefused: one is running on it.

    A directory without a lock file is a copy, which no broker uses: it is locked only if `create`.
    """
    path = directory / LOCK
    try:
        release = lock_file(str(path), create=create)
    except BlockingIOError:
        raise ImportRefused(f"a broker is running on {directory}. Stop it first.") from None
    except OSError as error:
        if not create and error.errno in (errno.ENOENT, errno.EROFS):
            yield
            return
        raise ImportRefused(f"cannot lock {path}: {error.strerror}.") from error
    try:
        yield
    finally:
        release()


def read_sources(paths: Sequence[Path]) -> Source:
    """Return the contents of all data directories of one broker.

    ImportRefused: one is no data directory or is damaged, or they belong to different clusters.
    """
    first, *others = [_read_source(path) for path in paths]
    for path, other in zip(paths[1:], others, strict=True):
        # A directory without meta.properties says nothing, and is taken on trust.
        if None not in (first.cluster_id, other.cluster_id) and (
            first.cluster_id != other.cluster_id
        ):
            raise ImportRefused(
                f"{path} belongs to cluster {other.cluster_id}, {paths[0]} to {first.cluster_id}."
                " Import one after the other."
            )
        _merge(first, other)
    return first


def _merge(source: Source, other: Source) -> None:
    source.cluster_id = source.cluster_id or other.cluster_id
    # Recovery trusts a data directory as a whole, so one unclean source makes the result unclean.
    source.is_clean &= other.is_clean
    source.recovery_points |= other.recovery_points
    source.start_offsets |= other.start_offsets
    source.metadata = source.metadata or other.metadata
    for name, found in other.topics.items():
        known = source.topics.setdefault(name, FoundTopic(name))
        for index, directory in found.directories.items():
            # Kafka moves partitions between directories by copying; neither copy can be preferred
            # by looking at it.
            if index in known.directories:
                raise ImportRefused(
                    f"{directory} and {known.directories[index]} are the same partition."
                    " Remove the older one."
                )
            known.directories[index] = directory
        known.topic_ids |= found.topic_ids
        known.is_swapping |= found.is_swapping


def _read_source(path: Path) -> Source:
    """Return the contents of `path`. ImportRefused: it is no data directory, or is damaged."""
    if not path.is_dir():
        raise ImportRefused(f"{path} is no directory. Name one of Kafka's log.dirs.")
    topics: dict[str, FoundTopic] = {}
    for directory in sorted(path.iterdir()):
        partition = split_partition_name(directory.name)
        if partition is None or not directory.is_dir():
            continue
        if directory.name != METADATA_DIRECTORY:
            name, index = partition
            _add(topics.setdefault(name, FoundTopic(name)), index, directory)
    if not topics:
        raise ImportRefused(
            f"{path} holds no partitions, which are directories like orders-0."
            " Name one of Kafka's log.dirs."
        )
    is_clean = (path / CLEAN_SHUTDOWN).exists()
    return Source(
        cluster_id=_cluster_id(path),
        is_clean=is_clean,
        recovery_points=_offsets(path / RECOVERY_POINTS),
        start_offsets=_offsets(path / LOG_START_OFFSETS),
        topics=topics,
        metadata=_metadata(path / METADATA_DIRECTORY, is_clean=is_clean),
    )


def _add(topic: FoundTopic, index: int, directory: Path) -> None:
    topic.directories[index] = directory
    data = _read(directory / PARTITION_METADATA)
    try:
        if data is not None:
            topic.topic_ids.add(decode_partition_metadata(data))
    except CorruptCheckpoint as error:
        raise ImportRefused(f"{directory / PARTITION_METADATA}: {error}.") from None
    # An interrupted compaction, which a start of Kafka completes.
    topic.is_swapping |= any(each.name.endswith(SWAP) for each in directory.iterdir())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _cluster_id(path: Path) -> str | None:
    """Return the cluster that a data directory belongs to by its own account, if it names one."""
    properties = _read(path / META_PROPERTIES)
    try:
        return decode_meta_properties(properties).get("cluster.id") if properties else None
    except UnknownVersion as unknown:
        raise ImportRefused(f"{path}: {unknown}.") from None


def _offsets(path: Path) -> Offsets:
    data = _read(path)
    try:
        return {} if data is None else decode_offsets(data)
    # A checkpoint only saves work: without it recovery reads more.
    except CorruptCheckpoint:
        return {}


def _metadata(directory: Path, *, is_clean: bool) -> ClusterMetadata | None:
    if not directory.is_dir():
        return None
    try:
        return read_cluster_metadata(directory, is_clean=is_clean)
    except WireError as error:
        raise ImportRefused(
            f"the cluster's metadata cannot be read: {error}. Move {directory} aside to import"
            " without it; topics then have the settings that --config gives them."
        ) from None
