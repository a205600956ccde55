"""Where partitions' logs come from: the data directory, or memory.

Translates a topic's settings for the log store and hands out opened logs; what a log is, is the
log store's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from logstore.durability import Durability
from logstore.group_commit import GroupCommit
from logstore.log_config import LogConfig
from logstore.memory_ledger import MemoryLedger
from logstore.partition import PartitionLog
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from wire.records import TimestampType

_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class Logs(Protocol):
    """The logs of all partitions."""

    def open(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionLog:
        """Return the recovered log of a partition, empty if it is new."""
        ...

    def delete(self, log: PartitionLog) -> None:
        """Wake whoever waits on a log, then remove it."""
        ...

    async def close(self) -> None:
        """Make everything durable and the next start quick."""
        ...


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """Return what the log store obeys of a topic's settings."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        segment_index_bytes=config.segment_index_bytes,
        max_message_bytes=config.max_message_bytes,
        message_timestamp_type=_TIMESTAMP_TYPES[config.message_timestamp_type],
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        cleanup_policy=frozenset(config.cleanup_policy),
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
    )


class MemoryLogs:
    """Logs that are gone with the process: durability=memory."""

    def __init__(
        self,
        clock: Clock,
        config: BrokerConfig,
        leader_epoch: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._leader_epoch = leader_epoch
        self._group_commit = GroupCommit(None, Durability.MEMORY, on_failure=on_failure)

    def open(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionLog:
        settings = log_config(config, self._config)
        log = PartitionLog(
            topic,
            partition,
            MemoryLedger(self._group_commit, segment_bytes=settings.segment_bytes),
            settings,
            leader_epoch=self._leader_epoch,
            topic_id=topic_id,
        )
        log.open(self._clock.now_ms())
        return log

    def delete(self, log: PartitionLog) -> None:
        log.close(clean=False)

    async def close(self) -> None:
        self._group_commit.close()
