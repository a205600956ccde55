"""One committed offset, and its record in `__consumer_offsets`: OffsetCommitKey and -Value.

The key is (group, topic, partition), so compaction keeps the last commit of each partition. Values
have the versions that Apache Kafka 4.4 writes: 4, or 1 where the client asked for a retention time
of its own (OffsetCommit v2-v4). Only version 1 can hold that time, but it has no leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.internal.offset_commit import OffsetCommitValue
from wire.internal.versioned import decode_versioned, encode_versioned
from wire.message import Buffer
from wire.primitives import uvarint

NO_TOPIC_ID = UUID(int=0)
_VERSION = 4
_VERSION_WITH_EXPIRY = 1
#: version, offset, leader epoch
_HEAD, _TIMESTAMP = Struct(">hqi"), Struct(">q")
#: How many tags; which one, and its length.
_NO_TAGS, _TOPIC_ID_TAG = b"\x00", b"\x01\x00\x10"
#: The length of an empty text, and one.
_NO_METADATA = b"\x01"
_TAGS_BYTES_MAX = len(_TOPIC_ID_TAG) + 16
_VERSION_BYTES = _VERSION.to_bytes(2, "big")
#: Where the metadata begins, after its length of one byte.
_METADATA_AT = _HEAD.size + 1


class OffsetKey(NamedTuple):
    """The group and the partition that an offset is committed for."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """An offset as committed. `expires_ms` is -1 unless the client asked for a retention time."""

    offset: int
    leader_epoch: int = -1
    metadata: bytes = b""
    """In UTF-8: in Python one rare character would make each of a text's four bytes long."""
    committed_ms: int = -1
    expires_ms: int = -1
    topic_id: UUID = NO_TOPIC_ID

    def is_of(self, topic_id: UUID) -> bool:
        """Return whether this was committed for the topic; True also where an id is not known.

        A crash between the deletion of a topic and that of its offsets may leave offsets behind.
        """
        return topic_id == self.topic_id or NO_TOPIC_ID in (topic_id, self.topic_id)


class OffsetRecord(NamedTuple):
    """The new value of a key; None deletes it, whatever is committed or pending for it."""

    key: OffsetKey
    value: CommittedOffset | None


def deletions(group_id: str, partitions: Iterable[tuple[str, int]]) -> list[OffsetRecord]:
    """Return the deletions of a group's offsets for these partitions of topics."""
    # Not by the constructors, which run as Python code: there may be ten thousand.
    made = tuple.__new__
    return [
        made(OffsetRecord, (made(OffsetKey, (group_id, topic, partition)), None))
        for topic, partition in partitions
    ]


def metadata_code(metadata: bytes, units_max: int) -> ErrorCode:
    """Return OFFSET_METADATA_TOO_LARGE above `units_max` UTF-16 units (Java's count), else NONE."""
    units = len(metadata)
    if units > units_max and not metadata.isascii():
        units = len(metadata.decode().encode("utf-16-le")) // 2
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if units > units_max else ErrorCode.NONE


def encode_offset(committed: CommittedOffset) -> bytes:
    """Return the bytes of the OffsetCommitValue, in the version that holds all of `committed`.

    Each commit of each consumer comes here, so version 4 is packed by hand, in a fifth of the time:
    its number, offset and leader epoch, metadata with its length + 1, commit timestamp, topic id as
    tag 0, unless it is all zeros.
    """
    offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id = committed
    # Version 1 would lose the leader epoch, so it is written only where it must be.
    if expires_ms >= 0:
        value = OffsetCommitValue(
            offset=offset,
            metadata=metadata.decode(),
            commit_timestamp=committed_ms,
            expire_timestamp=expires_ms,
        )
        return encode_versioned(value, _VERSION_WITH_EXPIRY)
    # Not by the methods of UUID, which run as Python code.
    id_number = topic_id.int
    return b"".join(
        (
            _HEAD.pack(_VERSION, offset, leader_epoch),
            uvarint(len(metadata) + 1) if metadata else _NO_METADATA,
            metadata,
            _TIMESTAMP.pack(committed_ms),
            _TOPIC_ID_TAG + id_number.to_bytes(16, "big") if id_number else _NO_TAGS,
        )
    )


def decode_offset(value: Buffer) -> CommittedOffset:
    """Return the offset of an OffsetCommitValue. Raises WireError for damaged bytes.

    A start reads each commit that compaction has left, so version 4 is read by hand too, in half
    the time. What `encode_offset` does not write so goes to the decoder of all versions.
    """
    if len(value) > _METADATA_AT and value[:2] == _VERSION_BYTES:
        # Longer metadata has a length of two bytes, and 0 stands for null.
        length = value[_METADATA_AT - 1]
        timestamp_at = _METADATA_AT + length - 1
        # One byte more than there may be: what is longer is not read whole, nor kept.
        tags_at = timestamp_at + _TIMESTAMP.size
        topic_id = _topic_id_of(bytes(value[tags_at : tags_at + _TAGS_BYTES_MAX + 1]))
        if 0 < length < 0x80 and topic_id is not None:
            _, offset, leader_epoch = _HEAD.unpack_from(value)
            metadata = bytes(value[_METADATA_AT:timestamp_at]) if length > 1 else b""
            try:
                if metadata and not metadata.isascii():
                    metadata.decode()
            except UnicodeDecodeError as error:
                raise WireError(f"metadata of a committed offset: {error}") from None
            (committed_ms,) = _TIMESTAMP.unpack_from(value, timestamp_at)
            # Not by the constructor, which runs as Python code.
            return tuple.__new__(
                CommittedOffset, (offset, leader_epoch, metadata, committed_ms, -1, topic_id)
            )
    read = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        read.offset,
        read.leader_epoch,
        read.metadata.encode(),
        read.commit_timestamp,
        read.expire_timestamp,
        read.topic_id,
    )


# Thousands of commits are for the same topic.
@lru_cache(maxsize=128)
def _topic_id_of(tags: bytes) -> UUID | None:
    """Return the topic id in a value's tagged fields as `encode_offset` writes them, else None."""
    if tags == _NO_TAGS:
        return NO_TOPIC_ID
    if len(tags) == _TAGS_BYTES_MAX and tags.startswith(_TOPIC_ID_TAG):
        return UUID(bytes=tags[len(_TOPIC_ID_TAG) :])
    return None
