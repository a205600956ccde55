"""A directory of partitions, laid out as Kafka's: every log that one broker has on one disk.

    <directory>/.kafka_cleanshutdown               there only between a clean stop and a start
    <directory>/.magnetar-closed-logs              there only then: what a start need not find out
    <directory>/.magnetar-journal                  there only while a broker runs, or was killed
    <directory>/recovery-point-offset-checkpoint   where recovery of each log's bytes may begin
    <directory>/log-start-offset-checkpoint        where logs begin that DeleteRecords has cut
    <directory>/cleaner-offset-checkpoint          up to where logs are compacted
    <directory>/<topic>-<partition>/               the log, created by its first append
    <directory>/<topic>-<partition>.<id>-delete/   being deleted
    <directory>/<topic>-<partition>.<id>-stray/    of a topic id that is not the one opened

A checkpoint may be older than the truth, never newer. A torn one counts as absent, which costs time
only. But the recovery point of a log that Kafka has compacted also says where offsets may be
missing, so recovery points are durable before they have their name. Source: Kafka's LogManager.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

from logstore.directory.clean_stop import CleanStop
from logstore.directory.damage import Damage, tell_damage
from logstore.directory.data_directory import (
    DataDirectory,
    FoundPartition,
    Key,
    partition_name,
)
from logstore.directory.deleted_partitions import DELETE_SUFFIX, STRAY_SUFFIX, DeletedPartitions
from logstore.directory.foreign_logs import UsedNumbers, foreign_recovery_point, used_numbers
from logstore.directory.journal_replay import Replayed, replay_journal
from logstore.directory.log_offsets import LogOffsets
from logstore.directory.recovery_points import RecoveryPoints
from logstore.disk.barriers import Aside, Procedure, Result, in_thread, perform, perform_together
from logstore.disk.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS
from logstore.disk.discards import CallLater, Cancellable, Discards
from logstore.disk.durability import Durability
from logstore.disk.files import FileSystem
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.state_recovery import ClosedLog
from logstore.segments.cold_indexes import ColdIndexes
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import Ledger
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import GroupCommit
from logstore.sync.journal import (
    GENERATION_BITS,
    Journal,
    JournalDamaged,
    remove_journal,
)


def _ignore(*_: object) -> None:
    """A hook that is not set."""


class LogDirectory:
    """The logs of one broker. Made and closed on the event loop's thread, like its logs."""

    def __init__(
        self,
        path: str,
        files: FileSystem,
        group_commit: GroupCommit,
        defaults: LogConfig,
        *,
        steady_ms: Callable[[], int],
        call_later: CallLater | None = None,
        aside: Aside = in_thread,
        on_damage: Callable[[Damage], None] = _ignore,
        on_unreadable: Callable[[Key, OSError], None] = _ignore,
        on_stray: Callable[[Key], None] = _ignore,
        on_replayed: Callable[[Replayed], None] = _ignore,
        random_bits: Callable[[int], int] = secrets.randbits,
        accepts_journal_damage: bool = False,
    ) -> None:
        """Lock the directory (made if missing) and read its checkpoints. Blocks.

        `call_later` is the running loop's, unless a simulation has another. `aside` performs the
        syncs of many logs together. `on_damage` is told of every opened log that lacks something,
        `on_unreadable` of every read of a bad sector, `on_stray` of data with another topic's id,
        `on_replayed` of what the journal held, before it is deleted. `accepts_journal_damage`:
        start although its records are damaged. Raises DirectoryInUse and JournalDamaged. With
        `Durability.MEMORY` nothing is read nor written.
        """
        self._in_memory = in_memory = group_commit.durability is Durability.MEMORY
        self.path, self._files = path, files
        self._data = DataDirectory(path, files)
        self.defaults = defaults
        #: Whether the disk has lost where logs start: what was deleted may be there again.
        self.has_lost_starts = False
        self.clean_stop = CleanStop(path, files, self._data)
        self._cold_indexes = ColdIndexes()
        self._group_commit, self._steady_ms = group_commit, steady_ms
        self._logs: dict[Key, PartitionLog] = {}
        self._offsets = LogOffsets(self._data.top)
        self._recovery_points = RecoveryPoints(self._offsets, self._later, self._write_aside)
        self._call_later, self._aside = call_later, aside
        self._on_damage, self._on_unreadable, self._on_stray = on_damage, on_unreadable, on_stray
        self._on_replayed = on_replayed
        self._discards = Discards(files, self._later, aside, partial(group_commit.failed, path))
        self._deleted = DeletedPartitions(
            path, files, self._offsets, self._discards, aside, in_memory=in_memory
        )
        #: What the start has taken from the journal.
        self.replayed = Replayed()
        self._random_bits, self._accepts_journal_damage = random_bits, accepts_journal_damage
        if not self._in_memory:
            self._enter()

    def _enter(self) -> None:
        files = self._files
        self._data.enter()
        self.has_lost_starts = self._offsets.read()
        self.clean_stop.take()
        # After a clean stop Kafka may have gone on: replaying an old journal would undo its writes.
        if not self.clean_stop.was_clean:
            try:
                self.replayed = replay_journal(
                    files,
                    self.path,
                    self._data.read_topic_id,
                    accepts_damage=self._accepts_journal_damage,
                )
            except JournalDamaged:
                self._data.release()
                raise
            self._on_replayed(self.replayed)
        remove_journal(files, self.path)
        if self._group_commit.durability is Durability.FSYNC and files.can_sync_all:
            self._group_commit.use_journal(
                Journal(files, self.path, self._random_bits(GENERATION_BITS))
            )
        files.sync_directory(self.path)

    def claim(self, *, cluster_id: str, node_id: int) -> None:
        """Write whose directory this is, or check that it is the same. Raises ForeignDirectory."""
        if not self._in_memory:
            self._data.claim(cluster_id=cluster_id, node_id=node_id)

    def identity(self) -> dict[str, str]:
        """Return what the directory says of whose it is: to adopt its cluster id."""
        return {} if self._in_memory else self._data.identity()

    def found_partitions(self) -> list[FoundPartition]:
        """Return the partitions that lie on the disk, opened or not: to adopt them."""
        if self._in_memory:
            return []
        return self._data.found_partitions(
            {key: log.topic_id for key, log in self.clean_stop.closed.items()}
        )

    def holds_log(self, found: FoundPartition) -> bool:
        """Whether a segment lies in the partition, as in any that a broker has made."""
        return self._data.holds_log((found.topic, found.partition))

    def trust_foreign(self, found: Iterable[FoundPartition]) -> None:
        """Let recovery of logs that another broker wrote begin behind what is whole of them.

        Durable on return. Blocks: all of a log is read, unless it was closed cleanly.
        """
        points = self._offsets.recovery_points
        with self._group_commit.storing(self.path):
            for each in found:
                key = each.topic, each.partition
                if not (self.clean_stop.was_clean and key in points):
                    point = foreign_recovery_point(self._files, self._data.directory_of(key))
                    points[key] = max(points.get(key, 0), point)
            self._offsets.write(RECOVERY_POINTS, sync=True)

    def used_numbers(self, found: FoundPartition, producer_ids_end: int) -> UsedNumbers:
        """Return the highest producer id below `producer_ids_end`, and epoch, in a partition that
        is not opened. Blocks: all of it is read."""
        directory = self._data.directory_of((found.topic, found.partition))
        return used_numbers(self._files, directory, producer_ids_end)

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
        with self._group_commit.storing(self.path):
            log = perform(self._files, opening)
            self._deleted.free((topic, partition))
        return log

    async def open_together(
        self, openings: Iterable[Procedure[PartitionLog]]
    ) -> list[PartitionLog]:
        """Return the logs of many partitions, recovered. They share their syncs."""
        await self.free_all()
        logs = await self._perform_together(openings)
        await self.free_all()
        return logs

    def free(self, topic: str, partition_count: int) -> None:
        """Free a topic's names durably, before a new topic of that name is announced. May block.

        Else the checkpoints of the deleted topic would be taken for those of the new one.
        """
        with self._group_commit.storing(self.path):
            self._deleted.free(*((topic, index) for index in range(partition_count)))

    async def free_all(self) -> None:
        """Do as `free`, for every partition whose deletion has ended."""
        with self._group_commit.storing(self.path):
            await self._deleted.free_all()

    async def _perform_together(self, procedures: Iterable[Procedure[Result]]) -> list[Result]:
        with self._group_commit.storing(self.path):
            return await perform_together(self._files, procedures, self._aside)

    def opening(
        self,
        topic: str,
        partition: int,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        leader_epoch: int = 0,
    ) -> Procedure[PartitionLog]:
        """Do as `open`, as a procedure for `open_together`."""
        key = topic, partition
        assert key not in self._logs, f"{topic}-{partition} is open"
        config, closed = config or self.defaults, self.clean_stop.closed.pop(key, None)
        self._deleted.free(key)
        if not self._in_memory and self._set_stray_aside(key, topic_id):
            closed = None
        recovery_point = self._offsets.recovery_points.get(key, 0)
        if closed is None and not self._in_memory and self._offsets.tells_of(key):
            self._deleted.forget_lost(key)
        ledger = self._ledger(key, config, recovery_point, closed, topic_id)
        log = PartitionLog(
            topic,
            partition,
            ledger,
            config,
            steady_ms=self._steady_ms,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
            on_recovery_point=None if self._in_memory else self._recovery_points.note,
        )
        if isinstance(ledger, FileLedger):
            ledger.segments.discard_later = partial(self._discard, log)
            ledger.segments.on_unreadable = partial(self._on_unreadable, key)
            end = self.replayed.end_of(partition_name(*key), topic_id)
            starts = None if self.has_lost_starts else self._offsets.start_offsets
            ledger.before_cut = partial(tell_damage, self._on_damage, key, end, self._data, starts)
        log.first_dirty_offset = self._offsets.first_dirty_offsets.get(key, 0)
        yield from log.opening(was_clean=self.clean_stop.was_clean, is_locked=True, closed=closed)
        self._logs[key] = log
        self._offsets.recovery_points[key] = log.recovery_point
        return log

    def _ledger(
        self,
        key: Key,
        config: LogConfig,
        recovery_point: int,
        closed: ClosedLog | None,
        topic_id: UUID | None,
    ) -> Ledger:
        if self._in_memory:
            return MemoryLedger(self._group_commit, segment_bytes=config.segment_bytes)
        return FileLedger(
            self._files,
            self._data.directory_of(key),
            self._group_commit,
            config,
            start_offset=self._offsets.start_offsets.get(key, 0),
            recovery_point=recovery_point,
            clean=self.clean_stop.was_clean,
            closed=None if closed is None else closed.ledger,
            topic_id=topic_id,
            cold_indexes=self._cold_indexes,
        )

    def _set_stray_aside(self, key: Key, topic_id: UUID | None) -> bool:
        found = self._data.take_topic_id(key)
        is_stray = topic_id is not None and found is not None and found != topic_id
        # The catalog decides which topic has the name; the data of the other one is kept aside.
        if is_stray:
            self._deleted.put_away(key, STRAY_SUFFIX)
            self._deleted.settle()
            self._on_stray(key)
        return is_stray

    async def delete(self, logs: Sequence[PartitionLog]) -> None:
        """Delete partitions: unknown from this step on, durably deleted on return.

        Their waiters are woken and their directories renamed, some in each turn of the event loop.
        The files go after `file.delete.delay.ms`.
        """
        leaving = {}
        for log in logs:
            key = log.topic, log.partition
            log.become_unknown()
            del self._logs[key]
            leaving[key] = log
        self._data.forget_topic_ids(leaving)
        with self._group_commit.storing(self.path):
            await self._deleted.delete(leaving)

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """Close logs that are durable to their ends. What they hold stays, and may be reopened."""
        for log in logs:
            del self._logs[log.topic, log.partition]
            log.close()

    def remove(self, found: Iterable[FoundPartition]) -> None:
        """Delete partitions that are not opened, durably. Blocks."""
        with self._group_commit.storing(self.path):
            self._data.forget_topic_ids((each.topic, each.partition) for each in found)
            for each in found:
                self._deleted.put_away((each.topic, each.partition), DELETE_SUFFIX)
            self._deleted.settle()

    def sweep(self) -> None:
        """Delete, in a thread from now on, what the last process was deleting when it ended.

        Call it once all known logs are open: what the checkpoints tell of others is forgotten too.
        """
        if not self._in_memory:
            others = self._offsets.keys().difference(self._logs)
            for key in others:
                self._deleted.forget_lost(key)
            self._deleted.sweep()

    async def persist_start_offsets(self, starts: Iterable[tuple[PartitionLog, int]]) -> None:
        """Make the starts of these logs durable, by one sync; `advance_start` comes after.

        Deleted logs are left out: the next log of that name has offsets of its own.
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
        with self._group_commit.storing(self.path):
            await self._aside(partial(self._offsets.write, name, sync=True))

    def checkpoint_cleaned(self, log: PartitionLog) -> None:
        """Write up to where the log is clean. Not synced: cleaning a part again does no harm."""
        key = log.topic, log.partition
        if not self._in_memory and self._logs.get(key) is log:
            self._offsets.first_dirty_offsets[key] = log.first_dirty_offset
            with self._group_commit.storing(self.path):
                self._offsets.write(CLEANER_OFFSETS, sync=False)

    def _discard(self, log: PartitionLog, paths: Sequence[str]) -> None:
        self._discards.files_later(log.config.file_delete_delay_ms, paths)

    def _later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        return call_later(seconds, callback)

    async def close(self) -> None:
        """Make everything durable, write snapshots and checkpoints, and leave the clean marker.

        After a storage failure nothing is written: the next start recovers.
        """
        await self._recovery_points.stop()
        # After a failure the page cache may hold less than it seems: recovery must look.
        clean = self._group_commit.failure is None
        if clean:
            self._deleted.finish()
            logs = self._logs.values()
            late = [log for log in logs if log.high_watermark < log.log_end_offset]
            await asyncio.gather(*(log.durable(log.log_end_offset) for log in late))
            await self._perform_together([log.securing() for log in self._logs.values()])
            # A sync that was under way may have failed: the kernel tells of lost pages once.
            clean = self._group_commit.failure is None
        for log in self._logs.values():
            log.close()
        if clean and not self._in_memory:
            # What only the journal has is synced to its own files before the journal goes.
            if self._group_commit.has_journal:
                with self._group_commit.storing(self.path):
                    await self._aside(self._files.sync_all)
                    remove_journal(self._files, self.path)
            points = {key: log.recovery_point for key, log in self._logs.items()}
            self._offsets.recovery_points |= points
            self._offsets.write(RECOVERY_POINTS, sync=True)
            self._offsets.write(LOG_START_OFFSETS, sync=True)
            self.clean_stop.leave(self._logs)
        self._let_go()

    def abandon(self) -> None:
        """Release everything at once and write nothing, as the end of the process would."""
        for log in self._logs.values():
            log.close()
        self._let_go()

    def _let_go(self) -> None:
        # Again after a close, which makes logs durable and so moves their points.
        self._recovery_points.abandon()
        self._deleted.abandon()
        self._discards.stop()
        self._logs.clear()
        self._data.release()
