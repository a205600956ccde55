"""The logs of partitions, in the data directory or in memory.

Translates a topic's settings for the log store, hands out opened logs, and finds those that lie in
the directory and are missing in the catalog. The log itself is the log store's.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from coordinator.producer_ids import PRODUCER_IDS_END
from coordinator.transactions.commit_plan import Storage
from logstore.directory.data_directory import DirectoryInUse, ForeignDirectory, FoundPartition
from logstore.directory.foreign_logs import UsedNumbers
from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, FileSystem, StorageFailure
from logstore.disk.room import Room
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.remote.commit_store import Bases
from logstore.sync.group_commit import GroupCommit
from logstore.sync.journal import JournalDamaged
from logstore.sync.sync_executors import SyncDurations, SyncExecutor
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.disk import DiskConfig
from magnetar.config.load import ConfigError
from magnetar.config.topic import TopicConfig
from magnetar.logging import get_logger
from magnetar.storage import disk_reports, open_files
from magnetar.storage.topic_names import INTERNAL
from wire.records import Compression, TimestampType

if TYPE_CHECKING:
    from logstore.remote.bulk_store import BulkStore
    from logstore.remote.offload import Bulk

_log = get_logger("logs")

#: Kafka's default of max.message.bytes, below which it has no effect on coordinators' topics.
_COORDINATOR_BATCH_BYTES_MIN = 1_048_588


class Opening(NamedTuple):
    """A partition whose log is to be opened."""

    topic: str
    partition: int
    topic_id: UUID
    config: TopicConfig
    leader_epoch: int = 0
    """The epoch that the catalog gives it, where it is above that of all logs."""


_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
_CODECS: dict[str, Compression | None] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    **{codec.name.lower(): codec for codec in Compression if codec is not Compression.NONE},
}


#: A longer interval between index entries counts as this one: a read walks through all batches of
#: one, in the event loop where they are in memory.
INDEX_INTERVAL_BYTES_MAX = 256 * 1024


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """Return the part of a topic's settings that the log store obeys."""
    return LogConfig(
        segment_bytes=_segment_bytes(config),
        segment_ms=_segment_ms(config),
        index_interval_bytes=min(config.index_interval_bytes, INDEX_INTERVAL_BYTES_MAX),
        segment_index_bytes=config.segment_index_bytes,
        max_message_bytes=config.max_message_bytes,
        max_decompressed_message_bytes=config.max_decompressed_message_bytes,
        message_timestamp_type=_TIMESTAMP_TYPES[config.message_timestamp_type],
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compression=_CODECS[config.compression_type],
        compression_level=_compression_level(config),
        cleanup_policy=frozenset(config.cleanup_policy),
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_retention_ms=config.delete_retention_ms,
        file_delete_delay_ms=config.file_delete_delay_ms,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
    )


def _compression_level(config: TopicConfig) -> int | None:
    if config.compression_type == "gzip" and config.compression_gzip_level >= 0:
        return config.compression_gzip_level
    return config.compression_zstd_level if config.compression_type == "zstd" else None


def _segment_bytes(config: TopicConfig) -> int:
    internal = config.internal_segment_bytes
    return config.segment_bytes if internal is None else internal


def _segment_ms(config: TopicConfig) -> int:
    """Return the age at which a segment rolls."""
    # The active segment is never compacted: a compacted log must roll in time for the maximum lag.
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


@contextmanager
def as_config_errors() -> Iterator[None]:
    """Turn what makes a data directory unusable into a ConfigError that says what to do."""
    try:
        yield
    except DirectoryInUse as in_use:
        raise ConfigError(
            f"{in_use}. Stop it, or name another directory with --data-dir."
        ) from in_use
    except JournalDamaged as damaged:
        raise ConfigError(str(damaged)) from damaged
    except ForeignDirectory as foreign:
        raise ConfigError(f"{foreign}. Name another directory with --data-dir.") from foreign


class UnreadableReads:
    """The reads that have failed because a segment is damaged, gone, or has a bad sector."""

    def __init__(self) -> None:
        self.count = 0
        # As many as there are partitions, at most.
        self._told: set[tuple[str, int]] = set()

    def note(self, key: tuple[str, int], error: OSError) -> None:
        """Count a read that failed; log it once for each partition."""
        topic, partition = key
        self.count += 1
        if key not in self._told:
            self._told.add(key)
            _log.error(
                "a segment cannot be read: its readers are refused",
                topic=topic,
                partition=partition,
                reason=str(error),
            )


class Directory(Protocol):
    """What keeps the logs of one node: `LogDirectory`, or `RemoteDirectory`."""

    def open(
        self, topic: str, partition: int, topic_id: UUID, config: LogConfig, leader_epoch: int, /
    ) -> PartitionLog: ...
    def opening(
        self, topic: str, partition: int, topic_id: UUID, config: LogConfig, leader_epoch: int, /
    ) -> Any:
        """Return what `open_together` takes."""

    async def open_together(self, openings: Iterable[Any], /) -> Sequence[PartitionLog | None]: ...
    def free(self, topic: str, partition_count: int, /) -> None: ...
    async def free_all(self) -> None: ...
    async def persist_start_offsets(
        self, starts: Iterable[tuple[PartitionLog, int]], /
    ) -> None: ...
    def checkpoint_cleaned(self, log: PartitionLog, /) -> None: ...
    async def delete(self, logs: Sequence[PartitionLog], /) -> None: ...
    async def release(self, logs: Sequence[PartitionLog], /) -> None: ...
    def sweep(self) -> None: ...
    async def close(self) -> None: ...
    def abandon(self) -> None: ...


class Logs:
    """The logs of all partitions that this node leads."""

    #: What moves to a bucket, once `begin_as` was called; None: there is none.
    bulk: Bulk | None = None
    #: What reads logs that other nodes have written, some from a bucket; None: there are none.
    bulk_store: BulkStore | None = None
    #: How commits of several nodes rest on one another; None: what is ordered is durable.
    bases: Bases | None = None
    #: How many segments one step of a trim takes. Each has up to five files; all of them take about
    #: 0.5 ms.
    trimmed_together = 8

    def __init__(
        self,
        config: BrokerConfig,
        group_commit: GroupCommit,
        directory: Directory,
        room: Room,
        *,
        on_disk: LogDirectory | None = None,
        unreadable: UnreadableReads | None = None,
        files: FileSystem | None = None,
    ) -> None:
        """`on_disk`: the directory, where it is one of files; `files`, to be closed at the end."""
        self._config = config
        self._group_commit = group_commit
        self._directory = directory
        self._on_disk = on_disk
        self._files = files
        self._unreadable = unreadable or UnreadableReads()
        #: Where clients' batches are refused while the disk is full.
        self.room = room
        #: The leader epoch of partitions that are opened; set before the first of them.
        self.leader_epoch = 0

    @classmethod
    def in_directory(
        cls,
        path: str,
        config: BrokerConfig,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        *,
        files: FileSystem | None = None,
        executor: SyncExecutor | None = None,
    ) -> Logs:
        """Lock the directory; make it if it is missing. Raises ConfigError, and OSError.

        The lock is held until `close`. With durability=memory nothing is read, written or locked.
        `files` and `executor` are the operating system's, unless a simulation has others.
        """
        durability = Durability(config.durability)
        files = files or _operating_system_files(path, durability)
        group_commit = GroupCommit(files, durability, on_failure=on_failure, executor=executor)
        reserve_bytes = config.view(DiskConfig).log_dir_reserve_bytes
        room = Room(
            partial(int, sys.maxsize) if durability is Durability.MEMORY else files.free_bytes,
            reserve_bytes,
            partial(disk_reports.tell_room, reserve_bytes),
        )
        group_commit.on_full = room.ran_out
        unreadable = UnreadableReads()
        with as_config_errors():
            directory = LogDirectory(
                path,
                files,
                group_commit,
                LogConfig(),
                steady_ms=clock.steady_ms,
                on_damage=disk_reports.tell_damage,
                on_unreadable=unreadable.note,
                on_stray=disk_reports.tell_stray,
                on_replayed=disk_reports.tell_replayed,
                accepts_journal_damage=config.journal_damage_accept,
            )
        disk_reports.tell_entered(directory)
        return cls(
            config,
            group_commit,
            directory,
            room,
            on_disk=directory,
            unreadable=unreadable,
            files=files,
        )

    async def delete_remains(self, topic_ids: Collection[UUID]) -> set[UUID]:
        """Delete what is left of deleted topics in a shared store; return of which anything was.

        Raises StoreUnavailable. What is left in files goes by a start.
        """
        return set()

    def begin_as(self, node_id: int, incarnation: int) -> None:
        """Write as this incarnation of a node; its number is the leader epoch. Call it before a log
        is opened."""
        self.leader_epoch = incarnation

    @property
    def unreadable_reads(self) -> int:
        """How many reads have failed because of a segment that is damaged or gone."""
        return self._unreadable.count

    @property
    def sync_durations(self) -> SyncDurations:
        """The durations of syncs since the start."""
        return self._group_commit.sync_durations

    @property
    def storage(self) -> Storage:
        """What remains after a crash of appends to several logs in one step."""
        if self._group_commit.is_all_or_nothing:
            return Storage.ALL_OR_NOTHING
        return Storage.IN_ORDER if self._group_commit.is_atomic else Storage.APART

    @property
    def is_leased(self) -> bool:
        """Whether no other node can lead these partitions: always, where the logs are here."""
        return True

    async def lease_ended(self) -> None:
        """Return when another node may lead these partitions: never, where the logs are here."""
        await asyncio.Event().wait()

    async def in_time(self, work: Coroutine[None, None, object], bound_s: float = 5.0) -> bool:
        """Do a part of a stop; return whether it was done. Raises what `work` raises.

        What waits for a store that other nodes share is given up at the end of the lease, or after
        the bound. A disk answers, or fails.
        """
        await work
        return True

    def proof(self) -> Callable[[], bool | None]:
        """Return what tells whether a commit has returned that began after this call."""
        return lambda: True

    async def proven(self) -> None:
        """Return when this node has led its partitions at some moment after the call."""

    async def after_trim(self) -> None:
        """Let others go on after a step of a trim. The next step may be made on return.

        Raises StorageFailure.
        """
        await asyncio.sleep(0)

    async def bucket_away(self) -> str:
        """Return why a node that is given partitions could not read their newest batches from the
        bucket now; empty if it could, or need not."""
        return ""

    def fail(self, failure: BaseException) -> None:
        """Stop because of a failure: nothing that is not durable yet becomes durable any more."""
        self._group_commit.fail(StorageFailure(str(failure)))

    @property
    def has_directory(self) -> bool:
        """Whether they lie in a data directory; else in a database."""
        return self._on_disk is not None

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directory belongs to by its own account, if it names one."""
        return None if self._on_disk is None else self._on_disk.identity().get("cluster.id")

    def claim(self, cluster_id: str, node_id: int) -> None:
        """Write the directory's owner into it. Raises ConfigError where it has another owner."""
        if self._on_disk is None:
            return
        with as_config_errors():
            # A copied directory under another catalog would mix the topics of two clusters.
            self._on_disk.claim(cluster_id=cluster_id, node_id=node_id)

    def found(self) -> list[FoundPartition]:
        """Return the partitions that lie in the directory, known to the catalog or not."""
        return [] if self._on_disk is None else self._on_disk.found_partitions()

    def holds_log(self, found: FoundPartition) -> bool:
        """Whether the partition has a segment: every one that a broker has made has."""
        return self._found_on_disk.holds_log(found)

    def used_numbers(self, found: FoundPartition) -> UsedNumbers:
        """Return the highest producer id, and epoch, that a partition tells of. Blocks."""
        return self._found_on_disk.used_numbers(found, PRODUCER_IDS_END)

    def trust_foreign(self, found: Iterable[FoundPartition]) -> None:
        """Let recovery of logs that another broker wrote begin behind their whole part."""
        self._found_on_disk.trust_foreign(found)

    @property
    def _found_on_disk(self) -> LogDirectory:
        assert self._on_disk is not None, "what was found is on a disk"
        return self._on_disk

    def open(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionLog:
        """Return the recovered log of a partition, empty if it is new."""
        settings = self.settings(topic, config)
        return self._directory.open(topic, partition, topic_id, settings, self.leader_epoch)

    def free(self, topic: str, partition_count: int) -> None:
        """Forget durably everything known of former logs of these names. May block."""
        self._directory.free(topic, partition_count)

    async def free_all(self) -> None:
        """As `free`, for all names, while other requests are served."""
        await self._directory.free_all()

    async def open_together(self, openings: Iterable[Opening]) -> Sequence[PartitionLog | None]:
        """Return the recovered logs of these partitions, by as few syncs as for one.

        None: its newest batches are in a bucket, and cannot be read now (`late_openings`).
        """
        return await self._directory.open_together(self._openings(openings))

    def _openings(self, openings: Iterable[Opening]) -> Iterator[Any]:
        # Neighbours share their settings: to compute those of 500 takes longer than a step may.
        former = settings = None
        for each in openings:
            of = each.topic, each.config
            if settings is None or of != former:
                former, settings = of, self.settings(*of)
            epoch = max(self.leader_epoch, each.leader_epoch)
            yield self._directory.opening(
                each.topic, each.partition, each.topic_id, settings, epoch
            )

    def reconfigure(self, topic: str, logs: Iterable[PartitionLog], config: TopicConfig) -> None:
        """Apply changed settings to open logs of a topic, from their next batches on."""
        settings = self.settings(topic, config)
        for log in logs:
            log.reconfigure(settings)

    def settings(self, topic: str, config: TopicConfig) -> LogConfig:
        """Return the settings that a log obeys."""
        settings = log_config(config, self._config)
        if topic not in INTERNAL:
            return settings
        # A coordinator must be able to write what a timer has decided, however small the limit is.
        message_bytes = max(settings.max_message_bytes, _COORDINATOR_BATCH_BYTES_MIN)
        # A start replays what no compaction can shorten: the last segment, and as much before it.
        segment_bytes = min(settings.segment_bytes, message_bytes)
        return replace(settings, max_message_bytes=message_bytes, segment_bytes=segment_bytes)

    async def persist_start_offsets(self, starts: Sequence[tuple[PartitionLog, int]]) -> None:
        """Make the start offsets of logs durable, by one sync; `advance_start` comes after it."""
        await self._directory.persist_start_offsets(starts)

    def checkpoint_cleaned(self, log: PartitionLog) -> None:
        """Remember, across restarts, up to which offset a log is compacted."""
        self._directory.checkpoint_cleaned(log)

    async def delete(self, logs: Sequence[PartitionLog]) -> None:
        """Forget these logs in this step, wake the requests that wait on them, and remove them."""
        await self._directory.delete(logs)

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """Make these logs durable and close them, for another node to lead their partitions.

        Expects that they refuse appends already. Nothing of them is written later.
        """
        await self._directory.release(logs)

    def remove(self, found: Sequence[FoundPartition]) -> None:
        """Remove partitions that lie in the directory and are not open."""
        self._found_on_disk.remove(found)

    def sweep(self) -> None:
        """Delete, in the background, the rest of what the last process was deleting at its end."""
        self._directory.sweep()

    async def close(self) -> None:
        """Make everything durable and the next start quick; release the lock."""
        await self._directory.close()
        self._group_commit.close()
        if self._files is not None:
            self._files.close()


def _operating_system_files(path: str, durability: Durability) -> DiskFiles:
    root = tempfile.gettempdir() if durability is Durability.MEMORY else path
    files = DiskFiles(root, open_max=open_files.logs_max())
    if durability is Durability.FSYNC and files.sync_all_obstacle is not None:
        _log.warning(
            "no journal: each file is synced by itself, which takes longer",
            reason=files.sync_all_obstacle,
        )
    return files
