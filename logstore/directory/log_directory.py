"""A directory of partitions, laid out as Kafka's: every log that one broker has on one disk.

    <directory>/.kafka_cleanshutdown               there only between a clean stop and a start
    <directory>/.magnetar-closed-logs              there only then: what the start need not find out
    <directory>/.magnetar-journal                  there only while a broker runs, or was killed
    <directory>/recovery-point-offset-checkpoint   where recovery of each log's bytes may begin
    <directory>/log-start-offset-checkpoint        where logs begin that DeleteRecords has cut
    <directory>/cleaner-offset-checkpoint          up to where logs are compacted
    <directory>/<topic>-<partition>/               the log, created by its first append
    <directory>/<topic>-<partition>.<id>-delete/   being deleted
    <directory>/<topic>-<partition>.<id>-stray/    of a topic id that is not the one opened

A checkpoint may be older than the truth, never newer. One that is torn counts as absent, which
costs time only; but of a log that Kafka has compacted the recovery point says where offsets may be
missing, so recovery points are durable before they have their name. Source: Kafka's LogManager.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from logstore.directory.claimed_directory import ClaimedDirectory
from logstore.directory.closed_logs import (
    CLOSED_LOGS,
    ClosedLog,
    encode_closed_logs,
    stamps_of,
    unchanged_logs,
)
from logstore.directory.deleted_partitions import DELETE_SUFFIX, STRAY_SUFFIX, Departures
from logstore.directory.foreign_logs import foreign_recovery_point
from logstore.directory.log_offsets import LogOffsets
from logstore.disk.barriers import (
    Aside,
    Procedure,
    Result,
    in_thread,
    perform,
    perform_together,
)
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    decode_partition_metadata,
    encode_clean_shutdown,
)
from logstore.disk.discards import CallLater, Cancellable, Discards
from logstore.disk.durability import Durability
from logstore.disk.files import FileSystem, StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.names import partition_name, split_partition_name
from logstore.segments.attachments import SmallFiles
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import Ledger
from logstore.segments.memory_ledger import MemoryLedger
from logstore.segments.names import LOG_SUFFIX
from logstore.sync.group_commit import GroupCommit
from logstore.sync.journal import Journal, remove_journal, replay_journal

_KRAFT_LOG = "__cluster_metadata"
#: Recovery points that have moved are written together, at most so often.
_CHECKPOINT_AFTER_S = 1.0


class FoundPartition(NamedTuple):
    """A partition that lies on the disk; `topic_id` is None where nothing says it."""

    topic: str
    partition: int
    topic_id: UUID | None


class Damage(NamedTuple):
    """What recovery had to leave out of a log, which ends at `end_offset` now."""

    topic: str
    partition: int
    end_offset: int
    #: Cut off behind the last valid batch. A crash leaves some that nobody was promised.
    truncated_bytes: int
    #: Not 0: so many offsets are gone that had been durable.
    lost_offsets: int


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class LogDirectory(ClaimedDirectory):
    """The logs of one broker. Made and closed on the event loop's thread, like its logs."""

    def __init__(
        self,
        path: str,
        files: FileSystem,
        group_commit: GroupCommit,
        defaults: LogConfig,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        call_later: CallLater | None = None,
        aside: Aside = in_thread,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        """Lock the directory (made if missing) and read its checkpoints. Blocks.

        `call_later` is the running loop's, unless a simulation has another; `aside` does syncs of
        many logs together. `on_damage` is told of every log that is opened and lacks something.
        Raises DirectoryInUse. With `Durability.MEMORY` nothing is read nor written.
        """
        in_memory = group_commit.durability is Durability.MEMORY
        super().__init__(path, files, in_memory=in_memory)
        self.defaults = defaults
        #: Whether the last stop was clean: nothing had to be scanned.
        self.was_clean = False
        self._group_commit = group_commit
        self._now_ms = now_ms
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._offsets = LogOffsets(self._top)
        #: Logs that are as the last clean stop has left them, until they are opened.
        self._closed: dict[tuple[str, int], ClosedLog] = {}
        #: What `found_partitions` has read: of partitions that are not opened yet.
        self._topic_ids: dict[str, UUID | None] = {}
        self._call_later = call_later
        self._aside = aside
        self._on_damage = on_damage
        self._discards = Discards(files, self._later, aside, self._failed)
        self._departures = Departures(
            path, files, self._offsets, self._discards, aside, in_memory=in_memory
        )
        self._checkpoint_due: Cancellable | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        if not self._in_memory:
            self._enter()

    def _enter(self) -> None:
        files = self._files
        self._lock()
        self.was_clean = files.exists(f"{self.path}/{CLEAN_SHUTDOWN}")
        self._offsets.read()
        if self.was_clean:
            closed = self._top.read(CLOSED_LOGS)
            self._closed = {} if closed is None else unchanged_logs(files, self.path, closed)
        # From here on a stop is not clean, unless `close` says so again.
        self._top.delete(CLEAN_SHUTDOWN)
        self._top.delete(CLOSED_LOGS)
        if not self.was_clean:  # else somebody may have gone on from what it tells of
            replay_journal(files, self.path, self._read_topic_id)
        remove_journal(files, self.path)
        if self._group_commit.durability is Durability.FSYNC and files.can_sync_all:
            self._group_commit.use_journal(Journal(files, self.path))
        files.sync_directory(self.path)

    def found_partitions(self) -> list[FoundPartition]:
        """The partitions that lie on the disk, opened or not: to adopt them."""
        if self._in_memory:
            return []
        found = []
        for name in self._files.list(self.path):
            key = split_partition_name(name)
            if key is not None and key[0] != _KRAFT_LOG:
                closed = self._closed.get(key)
                try:
                    topic_id = (closed and closed.topic_id) or self._read_topic_id(name)
                except NotADirectoryError:
                    continue  # somebody else's file
                self._topic_ids[name] = topic_id
                found.append(FoundPartition(*key, topic_id))
        return found

    def holds_log(self, found: FoundPartition) -> bool:
        """Whether there is a segment in it, as in any that a broker has made."""
        names = self._files.list(self._directory_of((found.topic, found.partition)))
        return any(name.endswith(LOG_SUFFIX) for name in names)

    def trust_foreign(self, found: Iterable[FoundPartition]) -> None:
        """Have recovery of logs that another broker wrote begin behind what is whole of them.

        Durable. Blocks: where they were not closed cleanly, all of them are read.
        """
        points = self._offsets.recovery_points
        with self._storing():
            for each in found:
                key = each.topic, each.partition
                if not (self.was_clean and key in points):
                    point = foreign_recovery_point(self._files, self._directory_of(key))
                    points[key] = max(points.get(key, 0), point)
            self._offsets.write(RECOVERY_POINTS, sync=True)

    def _topic_id_of(self, name: str) -> UUID | None:
        """What `found_partitions` has found there; once, for it may be another's then."""
        return self._topic_ids.pop(name) if name in self._topic_ids else self._read_topic_id(name)

    def _read_topic_id(self, name: str) -> UUID | None:
        data = SmallFiles(self._files, f"{self.path}/{name}").read(PARTITION_METADATA)
        try:
            return None if data is None else decode_partition_metadata(data)
        except CorruptCheckpoint:
            return None

    def open(
        self,
        topic: str,
        partition: int,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        leader_epoch: int = 0,
    ) -> PartitionLog:
        """Return the partition's log, recovered; nothing is created until its first append.

        `config` defaults to the directory's. A directory of another topic id is set aside. Blocks.
        """
        opening = self.opening(topic, partition, topic_id, config, leader_epoch)
        with self._storing():
            log = perform(self._files, opening)
            self._departures.free((topic, partition))
        return log

    async def open_together(
        self, openings: Iterable[Procedure[PartitionLog]]
    ) -> list[PartitionLog]:
        """Return the logs of many partitions, recovered; the syncs are for all of them."""
        await self.free_all()
        logs = await self._perform_together(openings)
        await self.free_all()
        return logs

    def free(self, topic: str, partition_count: int) -> None:
        """Have these names be nobody's, durably: to be called before anybody is told that they are
        somebody's again, of whom the checkpoints would not be true. May block.
        """
        with self._storing():
            self._departures.free(*((topic, index) for index in range(partition_count)))

    async def free_all(self) -> None:
        """As `free`, for every name that a deletion has ended with."""
        with self._storing():
            await self._departures.free_all()

    async def _perform_together(self, procedures: Iterable[Procedure[Result]]) -> list[Result]:
        with self._storing():
            return await perform_together(self._files, procedures, self._aside)

    def opening(
        self,
        topic: str,
        partition: int,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        leader_epoch: int = 0,
    ) -> Procedure[PartitionLog]:
        """As `open`, for `open_together`."""
        key = topic, partition
        assert key not in self._logs, f"{topic}-{partition} is open"
        config = config or self.defaults
        closed = self._closed.pop(key, None)
        self._departures.free(key)
        if not self._in_memory and self._set_stray_aside(key, topic_id):
            closed = None
        recovery_point = self._offsets.recovery_points.get(key, 0)
        if closed is None and not self._in_memory and self._offsets.tells_of(key):
            self._departures.forget_lost(key)
        ledger = self._ledger(key, config, recovery_point, closed, topic_id)
        log = PartitionLog(
            topic,
            partition,
            ledger,
            config,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
            on_recovery_point=self._schedule_checkpoint,
        )
        if isinstance(ledger, FileLedger):
            ledger.segments.discard_later = partial(self._discard, log)
        log.first_dirty_offset = self._offsets.first_dirty_offsets.get(key, 0)
        yield from log.opening(
            self._now_ms(), was_clean=self.was_clean, is_locked=True, closed=closed
        )
        self._tell_damage(key, ledger)
        self._logs[key] = log
        return log

    def _tell_damage(self, key: tuple[str, int], ledger: Ledger) -> None:
        found = ledger.recovered if isinstance(ledger, FileLedger) else None
        if self._on_damage and found and (found.truncated_bytes or found.lost_offsets):
            self._on_damage(
                Damage(*key, found.end_offset, found.truncated_bytes, found.lost_offsets)
            )

    def _ledger(
        self,
        key: tuple[str, int],
        config: LogConfig,
        recovery_point: int,
        closed: ClosedLog | None,
        topic_id: UUID | None,
    ) -> Ledger:
        if self._in_memory:
            return MemoryLedger(self._group_commit, segment_bytes=config.segment_bytes)
        return FileLedger(
            self._files,
            self._directory_of(key),
            self._group_commit,
            config,
            start_offset=self._offsets.start_offsets.get(key, 0),
            recovery_point=recovery_point,
            clean=self.was_clean,
            closed=None if closed is None else closed.ledger,
            topic_id=topic_id,
        )

    def _directory_of(self, key: tuple[str, int]) -> str:
        return f"{self.path}/{partition_name(*key)}"

    def _set_stray_aside(self, key: tuple[str, int], topic_id: UUID | None) -> bool:
        found = self._topic_id_of(partition_name(*key))
        is_stray = topic_id is not None and found is not None and found != topic_id
        if is_stray:
            self._departures.put_away(key, STRAY_SUFFIX)
            self._departures.settle()
        return is_stray

    async def delete(self, logs: Sequence[PartitionLog]) -> None:
        """Delete partitions: unknown to everybody in this step, durably on return.

        Who waits for them is woken, and their directories lose their names, some in each turn of
        the event loop; the files go after `file.delete.delay.ms`.
        """
        for log in logs:
            del self._logs[log.topic, log.partition]
            self._topic_ids.pop(partition_name(log.topic, log.partition), None)
        with self._storing():
            await self._departures.depart(logs)

    def remove(self, found: Iterable[FoundPartition]) -> None:
        """Delete partitions that are not opened, durably. Blocks."""
        with self._storing():
            for each in found:
                self._topic_ids.pop(partition_name(each.topic, each.partition), None)
                self._departures.put_away((each.topic, each.partition), DELETE_SUFFIX)
            self._departures.settle()

    def sweep(self) -> None:
        """Delete what was being deleted when the last process ended: in a thread, from now on.

        For when all logs are open that anybody knows of: what checkpoints tell of others goes too.
        """
        if not self._in_memory:
            others = self._offsets.keys().difference(self._logs)
            for key in others:
                self._departures.forget_lost(key)
            self._departures.sweep()

    async def persist_start_offsets(self, starts: Iterable[tuple[PartitionLog, int]]) -> None:
        """Make it durable, by one sync, where these logs start; `advance_start` comes after.

        Those deleted meanwhile are left out: the next of that name has its own offsets.
        """
        if self._in_memory:
            return
        for log, start_offset in starts:
            key = log.topic, log.partition
            if self._logs.get(key) is log:
                start_offsets = self._offsets.start_offsets
                start_offsets[key] = max(start_offsets.get(key, 0), start_offset)
        await self._write_aside(LOG_START_OFFSETS)

    async def _write_aside(self, name: str) -> None:
        with self._storing():
            await self._aside(partial(self._offsets.write, name, sync=True))

    def checkpoint_cleaned(self, log: PartitionLog) -> None:
        """Write up to where the log is clean. Not synced: it may be cleaned once more."""
        key = log.topic, log.partition
        if not self._in_memory and self._logs.get(key) is log:
            self._offsets.first_dirty_offsets[key] = log.first_dirty_offset
            with self._storing():
                self._offsets.write(CLEANER_OFFSETS, sync=False)

    def _discard(self, log: PartitionLog, paths: Sequence[str]) -> None:
        self._discards.files_later(log.config.file_delete_delay_ms, paths)

    def _later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        return call_later(seconds, callback)

    def _schedule_checkpoint(self) -> None:
        if self._checkpoint_due is None and not self._in_memory:
            self._checkpoint_due = self._later(_CHECKPOINT_AFTER_S, self._checkpoint)

    def _checkpoint(self) -> None:
        self._checkpoint_due = None
        if self._checkpointing is not None:
            self._schedule_checkpoint()
            return
        self._note_recovery_points()
        loop = asyncio.get_running_loop()
        self._checkpointing = loop.create_task(self._write_aside(RECOVERY_POINTS))
        self._checkpointing.add_done_callback(self._checkpointed)

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpointing = None
        if not task.cancelled():
            task.exception()  # Whoever stops the process knows.

    def _note_recovery_points(self) -> None:
        points = self._offsets.recovery_points
        points.update((key, log.recovery_point) for key, log in self._logs.items())

    def _write_closed(self) -> None:
        """Say what the next start need not find out; after everything else but the clean mark."""
        closed = []
        for key, log in self._logs.items():
            ledger = log.ledger.as_closed() if isinstance(log.ledger, FileLedger) else None
            found = None if ledger is None else log.as_closed(ledger)
            if found is not None:
                segments = found.ledger.segments
                stamps = stamps_of(self._files, self._directory_of(key), segments)
                if stamps is not None:
                    closed.append((key, stamps, found))
        self._top.write(CLOSED_LOGS, encode_closed_logs(closed), sync=True)

    async def close(self) -> None:
        """Make everything durable, write snapshots and checkpoints, and leave the clean marker.

        After a storage failure nothing is written: the next start recovers.
        """
        if self._checkpoint_due is not None:
            self._checkpoint_due.cancel()
            self._checkpoint_due = None
        if self._checkpointing is not None:
            await asyncio.wait((self._checkpointing,))
        clean = self._group_commit.failure is None
        if clean:
            self._departures.finish()
            logs = self._logs.values()
            late = [log for log in logs if log.high_watermark < log.log_end_offset]
            await asyncio.gather(*(log.durable(log.log_end_offset) for log in late))
            await self._perform_together([log.securing() for log in self._logs.values()])
            # Of a sync that was under way: the kernel tells of lost pages once.
            clean = self._group_commit.failure is None
        for log in self._logs.values():
            log.close()
        if clean and not self._in_memory:
            if self._group_commit.has_journal:
                with self._storing():
                    await self._aside(self._files.sync_all)
                    remove_journal(self._files, self.path)
            self._note_recovery_points()
            self._offsets.write(RECOVERY_POINTS, sync=True)
            self._offsets.write(LOG_START_OFFSETS, sync=True)
            self._write_closed()
            self._top.write(CLEAN_SHUTDOWN, encode_clean_shutdown(), sync=True)
        self._departures.abandon()
        self._let_go()

    def abandon(self) -> None:
        """Let go of everything at once and write nothing, as the end of the process would."""
        if self._checkpoint_due is not None:
            self._checkpoint_due.cancel()
        self._departures.abandon()
        for log in self._logs.values():
            log.close()
        self._let_go()

    def _let_go(self) -> None:
        self._discards.stop()
        self._logs.clear()
        self._release()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Turn an error of the disk into a StorageFailure, after which nothing becomes durable."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageFailure:
        failure = StorageFailure(f"{self.path}: {error}")
        self._group_commit.fail(failure)
        return failure
