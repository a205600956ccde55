"""The file in which a clean stop notes the state of every log, so that a start opens fewer files.

    bytes 0-4   "MGNC"
          4-6   version               int16, 1
          6-10  CRC-32C               uint32, over bytes 10 to the end
         10-14  number of logs        int32, then for each log:
                  size of the topic's name in bytes int16, size of the state in bytes int32
                  numbers of segments, own snapshots, Kafka's snapshots int32; partition int32
                  topic id 16 bytes, zeros if there is none
                  times in ns of the last change to the directory and to the last `.log` int64
                  end offset int64; largest timestamp of the last segment and the last offset of
                  the batch that has it int64
                  the topic's name; base offset and size (int64) of each segment; end offset (int64)
                  of each snapshot, own ones first; the state, as in a `.state` file

The file is written last but for the mark of a clean stop, and counts only beside that mark. So no
start after a crash believes the file. A log that was changed since (by Kafka, or by a restored
backup) is recognised by the times of its directory and its last `.log`, and is opened as after a
clean stop of Kafka's. The same holds for a log that was changed in the tick of the clock in which
this file was written, since a second change in that tick would leave no trace. Logs with a large
state are left out: a start reads their state from their snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from uuid import UUID

from logstore.directory.data_directory import Key, partition_name
from logstore.disk.files import FileSystem
from logstore.disk.sealed import BODY_AT, BrokenSeal, Seal
from logstore.partition.state_recovery import ClosedLog
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.names import LOG_SUFFIX, segment_name, segment_path

CLOSED_LOGS = ".magnetar-closed-logs"

_SEAL = Seal(b"MGNC", 1)
_COUNT = Struct(">i")
_LOG = Struct(">hiiiii16sqqqqq")
_SEGMENT = Struct(">qq")
_OFFSET = Struct(">q")
_NO_TOPIC_ID = bytes(16)


class CorruptClosedLogs(ValueError):
    """The file is torn, or of another format. The logs themselves tell everything that it tells."""


class Stamps(NamedTuple):
    """The times at which a log's directory and its last `.log` were last changed, in ns."""

    directory_ns: int
    active_ns: int


class Left(NamedTuple):
    """What lies there of the logs that a clean stop has left."""

    #: The logs that are still as they were.
    unchanged: dict[Key, ClosedLog]
    #: For other logs, the `.log` files that are gone or shorter. A log whose last file has another
    #: size is not here: opening it finds that out.
    missing: dict[Key, list[str]]


def left_logs(files: FileSystem, path: str, data: bytes) -> Left:
    """Compare the logs in the directory `path` with `data`, its file. Blocks."""
    left = Left({}, {})
    try:
        logs = decode_closed_logs(data)
    except CorruptClosedLogs:
        return left
    written_ns = files.facts(f"{path}/{CLOSED_LOGS}").changed_ns
    for key, (stamps, log) in logs.items():
        directory, segments = f"{path}/{partition_name(*key)}", log.ledger.segments
        stamps_now = stamps_of(files, directory, segments)
        if max(stamps) < written_ns and stamps == stamps_now:
            left.unchanged[key] = log
        elif stamps_now is not None:
            missing = [each for each in segments if not _lies_in(files, directory, *each)]
            if missing:
                left.missing[key] = [segment_name(base, LOG_SUFFIX) for base, _ in missing]
    return left


def _lies_in(files: FileSystem, directory: str, base_offset: int, size_bytes: int) -> bool:
    try:
        facts = files.facts(segment_path(directory, base_offset, LOG_SUFFIX))
    except FileNotFoundError:
        return False
    return facts.size_bytes >= size_bytes


def stamps_of(files: FileSystem, directory: str, segments: list[tuple[int, int]]) -> Stamps | None:
    """Return a log's stamps on the disk; None if its last `.log` is gone or of another size."""
    base_offset, size_bytes = segments[-1]
    try:
        directory_ns = files.facts(directory).changed_ns
        active = files.facts(segment_path(directory, base_offset, LOG_SUFFIX))
    except FileNotFoundError:
        return None
    return Stamps(directory_ns, active.changed_ns) if active.size_bytes == size_bytes else None


def encode_closed_logs(logs: Iterable[tuple[Key, Stamps, ClosedLog]]) -> bytes:
    """Return the contents of the file for these logs."""
    parts, count = [b""], 0
    for (topic, partition), stamps, log in logs:
        name, ledger = topic.encode(), log.ledger
        parts.append(
            _LOG.pack(
                len(name),
                len(log.state),
                len(ledger.segments),
                len(log.snapshots),
                len(log.kafka_snapshots),
                partition,
                _NO_TOPIC_ID if log.topic_id is None else log.topic_id.bytes,
                *stamps,
                *ledger[1:],
            )
        )
        parts.append(name)
        parts += [_SEGMENT.pack(*segment) for segment in ledger.segments]
        parts += [_OFFSET.pack(offset) for offset in (*log.snapshots, *log.kafka_snapshots)]
        parts.append(log.state)
        count += 1
    parts[0] = _COUNT.pack(count)
    return _SEAL.sealed(b"".join(parts))


def decode_closed_logs(data: bytes) -> dict[Key, tuple[Stamps, ClosedLog]]:
    """Return the logs, by topic and partition. Raises CorruptClosedLogs."""
    try:
        _SEAL.check(data)
        return _decode_body(data)
    except (BrokenSeal, StructError, UnicodeDecodeError) as error:
        raise CorruptClosedLogs(str(error)) from None


def _decode_body(data: bytes) -> dict[Key, tuple[Stamps, ClosedLog]]:
    logs: dict[Key, tuple[Stamps, ClosedLog]] = {}
    (count,) = _COUNT.unpack_from(data, BODY_AT)
    at = BODY_AT + _COUNT.size
    for _ in range(count):
        name_size, state_size, segments, own, kafka, partition, topic_id, *rest = _LOG.unpack_from(
            data, at
        )
        name_at = at + _LOG.size
        segments_at = name_at + name_size
        own_at = segments_at + segments * _SEGMENT.size
        kafka_at = own_at + own * _OFFSET.size
        state_at = kafka_at + kafka * _OFFSET.size
        at = state_at + state_size
        directory_ns, active_ns, *bounds = rest
        logs[data[name_at:segments_at].decode(), partition] = (
            Stamps(directory_ns, active_ns),
            ClosedLog(
                None if topic_id == _NO_TOPIC_ID else UUID(bytes=topic_id),
                ClosedSegments(list(_SEGMENT.iter_unpack(data[segments_at:own_at])), *bounds),
                [offset for (offset,) in _OFFSET.iter_unpack(data[own_at:kafka_at])],
                [offset for (offset,) in _OFFSET.iter_unpack(data[kafka_at:state_at])],
                data[state_at:at],
            ),
        )
    return logs
