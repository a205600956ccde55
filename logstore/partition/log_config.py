"""The settings of one partition's log, and how a topic's configs override them.

Owns types, defaults and bounds of the topic configs that the log store obeys. Source: Kafka's
topic configs as of 4.3; bounds of `segment.bytes` by KIP-1030.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import Compression, TimestampType

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one partition's log rolls, indexes, validates, forgets. Sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    #: The largest batch, header included, as it arrives (compressed).
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    #: How far a record's create time may lie behind and ahead of the broker's clock.
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    #: What batches are stored in; None: as they come. The level is gzip's or zstd's.
    compression: Compression | None = None
    compression_level: int | None = None
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    delete_retention_ms: int = 24 * 3600 * 1000
    file_delete_delay_ms: int = 60_000
    #: With durability=page-cache: after so many records, or so long, all of it is synced.
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    #: Compaction: how dirty a log must be, how old a record may and must be, ms.
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    #: A producer that has no open transaction and is silent for this long is forgotten.
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    #: A snapshot of the producers is taken after so many bytes, besides those at segment rolls.
    snapshot_interval_bytes: int = 64 << 20

    @property
    def is_compacted(self) -> bool:
        """Whether records need a key."""
        return "compact" in self.cleanup_policy

    def with_overrides(self, configs: Mapping[str, str]) -> LogConfig:
        """Return this config with a topic's own settings, given by Kafka's names, on top.

        Names that are not of the log are left to others. Raises INVALID_CONFIG for a value that
        does not parse or is out of bounds.
        """
        changes: dict[str, Any] = {}
        for name, text in configs.items():
            setting = _SETTINGS.get(name)
            if setting is not None:
                field, parse = setting
                try:
                    changes[field] = parse(text)
                except ValueError as error:
                    raise KafkaError(
                        ErrorCode.INVALID_CONFIG, f"Invalid value {text} for {name}: {error}"
                    ) from None
        return replace(self, **changes) if changes else self


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("it is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return value

    return parse


def _timestamp_type(text: str) -> TimestampType:
    try:
        return {
            "CreateTime": TimestampType.CREATE_TIME,
            "LogAppendTime": TimestampType.LOG_APPEND_TIME,
        }[text]
    except KeyError:
        raise ValueError("it must be CreateTime or LogAppendTime") from None


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies <= {"delete", "compact"}:
        raise ValueError("it must be delete, compact, or both")
    return policies


#: Kafka's name -> the field, and how its text becomes a value.
_SETTINGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "segment.bytes": ("segment_bytes", _integer(1 << 20, INT32_MAX)),
    "segment.ms": ("segment_ms", _integer(1, INT64_MAX)),
    "index.interval.bytes": ("index_interval_bytes", _integer(0, INT32_MAX)),
    "segment.index.bytes": ("segment_index_bytes", _integer(4, INT32_MAX)),
    "max.message.bytes": ("max_message_bytes", _integer(0, INT32_MAX)),
    "message.timestamp.type": ("message_timestamp_type", _timestamp_type),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", _integer(0, INT64_MAX)),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", _integer(0, INT64_MAX)),
    "cleanup.policy": ("cleanup_policy", _cleanup_policy),
    "retention.ms": ("retention_ms", _integer(-1, INT64_MAX)),
    "retention.bytes": ("retention_bytes", _integer(-1, INT64_MAX)),
    "delete.retention.ms": ("delete_retention_ms", _integer(0, INT64_MAX)),
}
