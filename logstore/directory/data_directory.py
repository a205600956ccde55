"""A data directory as it lies on the disk: whose it is, and which partitions are in it.

    <directory>/.lock                     held while a process has the directory
    <directory>/meta.properties           whose it is: cluster.id, node.id, directory.id
    <directory>/<topic>-<partition>/      a partition; partition.metadata in it says the topic id

Not here: the logs (`log_directory`). Source: Kafka's LogManager and MetaProperties.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from logstore.disk.checkpoints import (
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    CorruptCheckpoint,
    UnknownVersion,
    decode_leader_epochs,
    decode_meta_properties,
    decode_partition_metadata,
    encode_properties,
)
from logstore.disk.files import FileSystem
from logstore.segments.attachments import SmallFiles
from logstore.segments.names import LOG_SUFFIX
from wire.types import uuid_text

#: A partition: its topic and its number.
Key = tuple[str, int]

#: The file that is locked while a process has a data directory, as in Kafka.
LOCK = ".lock"
#: The directory of KRaft's own log, which lies among the topics' in a directory of Kafka's.
_KRAFT_LOG = "__cluster_metadata"


class DirectoryInUse(Exception):
    """Another process holds the directory's lock."""


class ForeignDirectory(Exception):
    """The directory belongs to another cluster or node, or is of a later release."""


class FoundPartition(NamedTuple):
    """A partition that lies on the disk; `topic_id` is None where nothing says it."""

    topic: str
    partition: int
    topic_id: UUID | None


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def split_partition_name(name: str) -> Key | None:
    """Return topic and partition of the directory of that name; None: it is no partition's."""
    topic, _, number = name.rpartition("-")
    if not (topic and number.isascii() and number.isdigit()):
        return None
    partition = int(number)
    # One name for a partition: its number has no zeros before it.
    return (topic, partition) if partition_name(topic, partition) == name else None


class DataDirectory:
    """One data directory. Everything here blocks."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self.path = path
        #: The small files that lie in the directory itself.
        self.top = SmallFiles(files, path)
        self._files = files
        self._unlock: Callable[[], None] | None = None
        #: What `found_partitions` has read, of partitions that are not opened yet.
        self._topic_ids: dict[str, UUID | None] = {}

    # Which process, node and cluster have it.

    def lock(self) -> None:
        """Make the directory if it is missing, and lock it. Raises DirectoryInUse."""
        missing = self.path
        unsynced = []
        while missing and not self._files.exists(missing):
            missing = os.path.dirname(missing)
            unsynced.append(missing)
        self._files.make_directory(self.path)
        # A new directory is durable once each directory above it that got a name is synced.
        for directory in unsynced:
            self._files.sync_directory(directory or ".")
        try:
            self._unlock = self._files.lock(f"{self.path}/{LOCK}")
        except BlockingIOError:
            raise DirectoryInUse(f"{self.path} is in use by another process") from None

    def enter(self) -> None:
        """Lock the directory, to change what is in it. Raises DirectoryInUse, ForeignDirectory."""
        self.lock()
        try:
            self.identity()
        except ForeignDirectory:
            self.release()
            raise

    def release(self) -> None:
        """Let another process have the directory."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def claim(self, *, cluster_id: str, node_id: int) -> None:
        """Write meta.properties, or check that it says the same. Raises ForeignDirectory."""
        found = self.identity()
        wanted = {"cluster.id": cluster_id, "node.id": str(node_id)}
        self._refuse_other(found, wanted)
        properties = {"directory.id": uuid_text(uuid.uuid4()), **found, **wanted, "version": "1"}
        if found != properties:
            self.top.write(META_PROPERTIES, encode_properties(properties), sync=True)

    def check_identity(self, wanted: Mapping[str, str]) -> None:
        """Raise ForeignDirectory where meta.properties says something else than `wanted`."""
        self._refuse_other(self.identity(), wanted)

    def _refuse_other(self, properties: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            found = properties.get(name, value)
            if found != value:
                raise ForeignDirectory(f"{self.path} has {name} {found}, not {value}")

    def identity(self) -> dict[str, str]:
        """Return what meta.properties says, empty if there is none: to adopt its cluster id.

        Raises ForeignDirectory: a later release has written it.
        """
        data = self.top.read(META_PROPERTIES)
        try:
            return {} if data is None else decode_meta_properties(data)
        except UnknownVersion as unknown:
            raise ForeignDirectory(f"{self.path}: {unknown}") from None

    # Which partitions are in it.

    def directory_of(self, key: Key) -> str:
        """Return the path of a partition's directory."""
        return f"{self.path}/{partition_name(*key)}"

    def found_partitions(self, known_ids: Mapping[Key, UUID | None]) -> list[FoundPartition]:
        """Return the partitions that lie on the disk, opened or not.

        `known_ids`: topic ids that need not be read.
        """
        found = []
        for key in self.lying():
            name = partition_name(*key)
            try:
                topic_id = known_ids.get(key) or self.read_topic_id(name)
            except NotADirectoryError:
                continue  # A file of that name is no partition.
            self._topic_ids[name] = topic_id
            found.append(FoundPartition(*key, topic_id))
        return found

    def lying(self) -> list[Key]:
        """Return the partitions of which a file or a directory has the name."""
        keys = map(split_partition_name, self._files.list(self.path))
        return [key for key in keys if key is not None and key[0] != _KRAFT_LOG]

    def told_start(self, key: Key) -> int | None:
        """Return where the first leader epoch began by its file; None: nothing tells."""
        data = SmallFiles(self._files, self.directory_of(key)).read(LEADER_EPOCHS)
        try:
            entries = [] if data is None else decode_leader_epochs(data)
        except CorruptCheckpoint:
            return None
        return entries[0][1] if entries else None

    def holds_log(self, key: Key) -> bool:
        """Whether a segment lies in the partition, as in any that a broker has made."""
        return any(name.endswith(LOG_SUFFIX) for name in self._files.list(self.directory_of(key)))

    def read_topic_id(self, name: str) -> UUID | None:
        """Return the topic id that the directory `name` tells of; None if it tells of none."""
        data = SmallFiles(self._files, f"{self.path}/{name}").read(PARTITION_METADATA)
        try:
            return None if data is None else decode_partition_metadata(data)
        except CorruptCheckpoint:
            return None

    def take_topic_id(self, key: Key) -> UUID | None:
        """Return what `found_partitions` has found there, once: the name may be another's then."""
        name = partition_name(*key)
        return self._topic_ids.pop(name) if name in self._topic_ids else self.read_topic_id(name)

    def forget_topic_ids(self, keys: Iterable[Key]) -> None:
        """Forget what `found_partitions` has found there: these partitions are being deleted."""
        if self._topic_ids:
            for key in keys:
                self._topic_ids.pop(partition_name(*key), None)
