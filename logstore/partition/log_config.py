"""The settings of one partition's log.

Owns types and defaults of the topic configs that the log store obeys. Their texts and bounds belong
to the broker's configuration. Source: Kafka's topic configs as of 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.records import Compression, TimestampType
from wire.types import INT64_MAX


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one partition's log rolls, indexes, validates, forgets. Sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    #: The largest batch, header included, as it arrives (compressed).
    max_message_bytes: int = 1_048_588
    #: The largest record of a compressed batch, without its length.
    max_decompressed_message_bytes: int = 2**31 - 9
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
    #: A snapshot of the producers is taken after so many bytes, besides those at segment rolls;
    #: after fewer where batches are small.
    snapshot_interval_bytes: int = 64 << 20

    @property
    def is_compacted(self) -> bool:
        """Whether records need a key."""
        return "compact" in self.cleanup_policy
