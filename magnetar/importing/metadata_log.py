"""Topics in a KRaft cluster's metadata log: names, ids, counts, settings; and its producer ids.

`__cluster_metadata-0` holds snapshots, `<end offset>-<epoch>.checkpoint`, and the log's segments;
the state is the newest snapshot and the records after it. A value is a frame version, 1, the
record's type and its version, each a varint, then the record. Records between BeginTransaction
and AbortTransaction have no effect (KIP-868). Source: Kafka's MetadataRecordSerde, TopicsImage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from magnetar.storage.segment_files import Batch, read_batches, segments
from wire.errors import WireError
from wire.internal.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from wire.message import MetadataRecord
from wire.records import iterate_records

_FRAME_VERSION = 1
_TOPIC = 2
_KNOWN: dict[int, type[MetadataRecord]] = {
    record.record_type: record
    for record in (
        AbortTransactionRecord,
        BeginTransactionRecord,
        ConfigRecord,
        EndTransactionRecord,
        PartitionRecord,
        ProducerIdsRecord,
        RemoveTopicRecord,
        TopicRecord,
    )
}


@dataclass
class KnownTopic:
    """A topic as its cluster's metadata describes it."""

    name: str
    topic_id: UUID
    replication_factor: int = 0
    partition_count: int = 0


@dataclass
class ClusterMetadata:
    """The part of a cluster's metadata that an import takes over."""

    topics: dict[UUID, KnownTopic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Above every producer id that the cluster has assigned.
    next_producer_id: int = 0

    def by_name(self) -> dict[str, KnownTopic]:
        return {topic.name: topic for topic in self.topics.values()}

    def apply(self, record: MetadataRecord) -> None:
        """Account for one record of the log."""
        if isinstance(record, TopicRecord):
            self.topics[record.topic_id] = KnownTopic(record.name, record.topic_id)
        elif isinstance(record, PartitionRecord):
            if (topic := self.topics.get(record.topic_id)) is not None:
                topic.partition_count = max(topic.partition_count, record.partition_id + 1)
                topic.replication_factor = max(topic.replication_factor, len(record.replicas))
        elif isinstance(record, RemoveTopicRecord):
            if (removed := self.topics.pop(record.topic_id, None)) is not None:
                self.topic_configs.pop(removed.name, None)
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)
        elif isinstance(record, ConfigRecord) and record.resource_type == _TOPIC:
            own = self.topic_configs.setdefault(record.resource_name, {})
            if record.value is None:
                own.pop(record.name, None)
            else:
                own[record.name] = record.value


def read_cluster_metadata(directory: Path, *, is_clean: bool = True) -> ClusterMetadata:
    """Return the state of the metadata log in `directory`. WireError: damage, or a newer version.

    If the broker was not stopped cleanly, the log's end may be torn: Kafka cuts it off too.
    """
    metadata = ClusterMetadata()
    # Names are numbers padded with zeros, so the greatest name is the newest snapshot.
    snapshot = max(directory.glob("*-*.checkpoint"), default=None)
    end_offset = -1
    if snapshot is not None:
        end_offset = int(snapshot.stem.partition("-")[0])
        for _, record in _records(snapshot):
            metadata.apply(record)
    transaction = _Transaction(metadata)
    paths = segments(directory)
    for path in paths:
        for offset, record in _records(path, may_be_torn=path == paths[-1] and not is_clean):
            # Kafka may keep segments that the snapshot covers: applied twice, a removed topic would
            # come back.
            if offset >= end_offset:
                transaction.fold(record)
    return metadata


class _Transaction:
    """Holds back the records of one of the controller's transactions until its end."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._pending: list[MetadataRecord] | None = None

    def fold(self, record: MetadataRecord) -> None:
        if isinstance(record, BeginTransactionRecord):
            self._pending = []
        elif isinstance(record, AbortTransactionRecord):
            self._pending = None
        elif isinstance(record, EndTransactionRecord):
            for held in self._pending or ():
                self._metadata.apply(held)
            self._pending = None
        elif self._pending is not None:
            self._pending.append(record)
        else:
            self._metadata.apply(record)


def _records(path: Path, *, may_be_torn: bool = False) -> Iterator[tuple[int, MetadataRecord]]:
    for batch in read_batches(path):
        if not isinstance(batch, Batch):
            if may_be_torn:
                return
            raise WireError(f"{path} is damaged at byte {batch.position}: {batch.reason}")
        # Leader changes and snapshot headers, which say nothing of topics.
        if batch.header.is_control:
            continue
        for item in iterate_records(batch.data):
            if item.value is not None and (record := decode_record(item.value)) is not None:
                yield item.offset, record


def decode_record(value: bytes) -> MetadataRecord | None:
    """Return the record in a value of the metadata log, None for a type that is not read here.

    Raises WireError.
    """
    frame_version, position = _read_unsigned(value, 0)
    if frame_version != _FRAME_VERSION:
        raise WireError(f"a metadata record of frame version {frame_version}")
    record_type, position = _read_unsigned(value, position)
    version, position = _read_unsigned(value, position)
    # Records of other types are skipped by their type, so a newer Kafka may add some.
    known = _KNOWN.get(record_type)
    if known is None:
        return None
    # A version that is not known cannot be skipped: the topic it describes would be imported wrong.
    if version > known.max_version:
        raise WireError(
            f"{known.__name__} version {version}, known up to {known.max_version}:"
            " a newer Kafka wrote it"
        )
    record, _ = known.decode_from(value, version, position)
    return record


def _read_unsigned(value: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    # Five bytes at most: a varint of the frame has 32 bits.
    while position < len(value) and shift < 32:
        byte = value[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise WireError("a metadata record without its frame")
