"""The files that a path names, and the reader of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from logstore.directory.data_directory import split_partition_name
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from logstore.sync.journal import JOURNAL
from magnetar.dumping.entry import Entry
from magnetar.dumping.indexes import (
    dump_aborted_index,
    dump_kafka_snapshot,
    dump_offset_index,
    dump_snapshot,
    dump_time_index,
)
from magnetar.dumping.internal import DECODED
from magnetar.dumping.segments import dump_segment
from magnetar.dumping.small_files import (
    dump_catalog,
    dump_clean_shutdown,
    dump_journal,
    dump_leader_epochs,
    dump_offsets,
    dump_partition_metadata,
    dump_properties,
)
from magnetar.storage.placing import NODES
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.storage.topic_names import CLUSTER_METADATA

Read = Callable[[Path], Iterator[Entry]]
_BY_NAME: dict[str, Read] = {
    CLEAN_SHUTDOWN: dump_clean_shutdown,
    FILE_NAME: dump_catalog,
    JOURNAL: dump_journal,
    LEADER_EPOCHS: dump_leader_epochs,
    LOG_START_OFFSETS: dump_offsets,
    META_PROPERTIES: dump_properties,
    PARTITION_METADATA: dump_partition_metadata,
    RECOVERY_POINTS: dump_offsets,
    "cleaner-offset-checkpoint": dump_offsets,
    "replication-offset-checkpoint": dump_offsets,
}
_BY_SUFFIX: dict[str, Read] = {
    ".index": dump_offset_index,
    ".snapshot": dump_kafka_snapshot,
    ".state": dump_snapshot,
    ".timeindex": dump_time_index,
    ".txnindex": dump_aborted_index,
}
_SEGMENTS = (".log", ".checkpoint")


class Options(NamedTuple):
    """How segments are shown. `with_records` None: records of internal topics are."""

    with_records: bool | None = None
    first_offset: int = 0


class UnknownFile(Exception):
    """A file in no known format, or a directory without a file in a known one."""


def files_of(path: Path) -> Iterator[Path]:
    """Yield the files below a path that can be read, a directory's own ones first.

    Raises UnknownFile where there is none.
    """
    if not path.is_dir():
        yield path
        return
    found = False
    for each in _known_files(path):
        found = True
        yield each
    if not found:
        raise UnknownFile(f"{path} holds no file of a broker: name a data directory, or one in it.")


def _known_files(path: Path) -> Iterator[Path]:
    entries = sorted(path.iterdir())
    yield from (each for each in entries if each.is_file() and _is_known(each))
    for each in entries:
        # Other directories are not a partition's: staged imports, for example.
        is_partition = split_partition_name(each.name) is not None
        is_node = each.name.isdecimal() if path.name == NODES else each.name == NODES
        if each.is_dir() and (is_partition or is_node):
            yield from _known_files(each)


def dump_file(path: Path, options: Options) -> Iterator[Entry]:
    """Yield the lines of a file. Raises UnknownFile."""
    # The checkpoints of Kafka have no suffix, and names of their own; `.checkpoint` is a snapshot
    # of the metadata log.
    if path.suffix in _SEGMENTS and path.name not in _BY_NAME:
        is_log = path.suffix == ".log"
        # Resolved: within the directory itself the path may be a bare file name.
        partition = split_partition_name(path.resolve().parent.name)
        topic = (partition[0] if partition else "") if is_log else CLUSTER_METADATA
        with_records = topic in DECODED if options.with_records is None else options.with_records
        return dump_segment(
            path, topic, with_records=with_records, first_offset=options.first_offset
        )
    read = _BY_NAME.get(path.name)
    # The name is the base offset, without which an index cannot be read.
    if read is None and path.stem.isdigit():
        read = _BY_SUFFIX.get(path.suffix)
    if read is None:
        raise UnknownFile(
            f"{path} is no file of a broker: name a data directory, a partition's directory,"
            " or a segment, index, snapshot or checkpoint in one."
        )
    return read(path)


def _is_known(path: Path) -> bool:
    if path.name in _BY_NAME:
        return True
    # The part before `-`: a snapshot's name is its end offset and epoch.
    is_segment = path.suffix in _SEGMENTS and path.stem.partition("-")[0].isdigit()
    return is_segment or (path.suffix in _BY_SUFFIX and path.stem.isdigit())
