"""The small text files that Kafka keeps beside and above partitions, byte for byte.

    leader-epoch-checkpoint            0, count, then a line `<epoch> <start offset>` each
    recovery-point-offset-checkpoint   0, count, then a line `<topic> <partition> <offset>` each
    log-start-offset-checkpoint        the same
    cleaner-offset-checkpoint          the same
    partition.metadata                 version: 0, topic_id: <id in url-safe base64>
    .kafka_cleanshutdown               {"version":0,"brokerEpoch":-1}
    meta.properties                    Java properties: version, cluster.id, node.id, directory.id

Owns the formats. `directory` and `partition` decide when each is written. Source: Kafka's
CheckpointFile, PartitionMetadataFile, CleanShutdownFileHandler, MetaProperties (version 1; 0 is
read too).
"""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping

from wire.types import uuid_text

LEADER_EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"

_VERSION = 0
#: The versions of meta.properties. As in Kafka, a file without one is of version 0.
_META_VERSIONS = ("0", "1")
Offsets = dict[tuple[str, int], int]


class CorruptCheckpoint(ValueError):
    """A checkpoint is torn or of another format. What it says can be read from the log too."""


class UnknownVersion(ValueError):
    """A later release wrote meta.properties: the directory's format may be another one."""


def encode_leader_epochs(entries: list[tuple[int, int]]) -> bytes:
    """Return a leader-epoch-checkpoint of (leader epoch, start offset) pairs."""
    return _encode([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) pairs, ascending. Raises CorruptCheckpoint."""
    entries: list[tuple[int, int]] = []
    for line in _decode(data):
        epoch, start_offset = _integers(line, 2)
        if entries and (epoch <= entries[-1][0] or start_offset < entries[-1][1]):
            raise CorruptCheckpoint(f"{line!r} does not follow {entries[-1]}")
        entries.append((epoch, start_offset))
    return entries


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return an offset checkpoint of (topic, partition) -> offset."""
    return _encode(
        [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    )


def decode_offsets(data: bytes) -> Offsets:
    """Return (topic, partition) -> offset. Raises CorruptCheckpoint.

    An empty file tells of nothing: Kafka's start makes it so, and Kafka writes it a minute later.
    """
    offsets: Offsets = {}
    for line in _decode(data) if data else ():
        topic, _, rest = line.partition(" ")
        index, offset = _integers(rest, 2)
        offsets[topic, index] = offset
    return offsets


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the partition.metadata of a partition of that topic."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID:
    """Return the topic id. Raises CorruptCheckpoint."""
    fields = dict(line.partition(": ")[::2] for line in data.decode("utf-8", "replace").split("\n"))
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptCheckpoint(f"{data[:100]!r} is not a partition.metadata file")
    return uuid_from_text(fields["topic_id"])


def encode_clean_shutdown() -> bytes:
    """Return the marker of a clean stop, valid until the next start deletes it."""
    return json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode()


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return a Java properties file of plain names and values."""
    return "".join(f"{name}={properties[name]}\n" for name in sorted(properties)).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """Return the names and values of a Java properties file."""
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}


def decode_meta_properties(data: bytes) -> dict[str, str]:
    """Return what meta.properties says. Raises UnknownVersion."""
    properties = decode_properties(data)
    version = properties.get("version", _META_VERSIONS[0])
    if version not in _META_VERSIONS:
        raise UnknownVersion(
            f"{META_PROPERTIES} has version {version}, and only {' and '.join(_META_VERSIONS)} are"
            " known: a later release has used the directory"
        )
    return properties


def uuid_from_text(text: str) -> uuid.UUID:
    """Return the uuid that `uuid_text` shows as `text`. Raises CorruptCheckpoint."""
    try:
        return uuid.UUID(bytes=urlsafe_b64decode(text.strip() + "=="))
    except (ValueError, Base64Error):
        raise CorruptCheckpoint(f"{text!r} is not a topic id") from None


def _encode(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines]).encode()


def _decode(data: bytes) -> list[str]:
    # Padded, so that a file without these lines is refused below as any other torn one is.
    version, count, *lines = [*data.decode("utf-8", "replace").splitlines(), "", ""]
    entries = [line for line in lines if line]
    if version != str(_VERSION) or count != str(len(entries)) or not data.endswith(b"\n"):
        raise CorruptCheckpoint(
            f"version {version!r}, {count!r} entries announced, {len(entries)} found"
        )
    return entries


def _integers(text: str, count: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(" ")]
    except ValueError:
        raise CorruptCheckpoint(f"{text!r} is not {count} numbers") from None
    if len(numbers) != count:
        raise CorruptCheckpoint(f"{text!r} is not {count} numbers")
    return numbers
