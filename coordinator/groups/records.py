"""The records of a shard: groups and offsets, to and from the bytes of `__consumer_offsets`.

A key's first two bytes are its type: 0 and 1 are an offset, 2 is a classic group, 3 to 8 and 16 are
a consumer group. Other types belong to protocols that are not served here (KIP-932, KIP-1071), and
`decode` returns None for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from coordinator.groups.classic import records as classic
from coordinator.groups.consumer import records as consumer
from coordinator.groups.consumer.records import ConsumerGroupRecord
from coordinator.groups.offsets.committed import (
    OffsetKey,
    OffsetRecord,
    decode_offset,
    encode_offset,
)
from wire.errors import WireError
from wire.internal.group_metadata import GroupMetadataKey, GroupMetadataValue
from wire.internal.offset_commit import OffsetCommitKey
from wire.internal.versioned import decode_versioned, encode_versioned, peek_version

Buffer = bytes | bytearray | memoryview

_OFFSET_KEYS = (0, 1)
_OFFSET_KEY = 1
_GROUP_KEY = 2
_PARTITION = Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The new value of a classic group; None deletes it."""

    group_id: str
    value: GroupMetadataValue | None


ShardRecord = OffsetRecord | GroupRecord | ConsumerGroupRecord


def encode(record: ShardRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value; a value of None is a tombstone."""
    # First: one request may commit ten thousand offsets.
    if isinstance(record, OffsetRecord):
        group_id, topic, partition = record.key
        key = _offset_key_prefix(group_id, topic) + _PARTITION.pack(partition)
        committed = record.value
        return key, None if committed is None else encode_offset(committed)
    if isinstance(record, ConsumerGroupRecord):
        return consumer.encode(record)
    key = _with_type(_GROUP_KEY, GroupMetadataKey(group=record.group_id).encode(0))
    group = record.value
    return key, None if group is None else encode_versioned(group, classic.VERSION)


# A consumer commits for the same few topics again and again.
@lru_cache(maxsize=128)
def _offset_key_prefix(group_id: str, topic: str) -> bytes:
    """Return the key of an offset up to the partition, which is its last field."""
    message = OffsetCommitKey(group=group_id, topic=topic, partition=0)
    return _with_type(_OFFSET_KEY, message.encode(0))[: -_PARTITION.size]


# Until compaction the log has many commits for each.
@lru_cache(maxsize=128)
def _decode_offset_key(key: bytes) -> OffsetKey:
    # These keys have no version besides their type.
    place = OffsetCommitKey.decode(memoryview(key)[2:], 0)
    return OffsetKey(place.group, place.topic, place.partition)


def decode(key: Buffer | None, value: Buffer | None) -> ShardRecord | None:
    """Return the record; None for a type that is not served. Raises WireError for damaged bytes."""
    # Compaction drops records without keys, so such a record is damage.
    if key is None:
        raise WireError("a record of __consumer_offsets without a key")
    kind = peek_version(key)
    if kind in _OFFSET_KEYS:
        committed = None if value is None else decode_offset(value)
        return OffsetRecord(_decode_offset_key(bytes(key)), committed)
    if kind == _GROUP_KEY:
        group_id = GroupMetadataKey.decode(memoryview(key)[2:], 0).group
        group = None if value is None else decode_versioned(GroupMetadataValue, value)
        if group is not None:
            classic.check_members(group)
        return GroupRecord(group_id, group)
    return consumer.decode(kind, key, value)


def _with_type(kind: int, key: bytes) -> bytes:
    return kind.to_bytes(2, "big") + key
