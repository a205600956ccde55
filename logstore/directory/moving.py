"""Partitions that move from one data directory to another, on the same disk, while no broker runs.

Each step is durable before the next, and may be done again, so that after the end of the process at
any point a partition lies in one directory, whole, and the next run goes on from there:

1. What the source's journal holds is written to its files, and the journal goes. The mark of a
   clean stop goes too: it speaks of all logs of a directory, and these will be others.
2. The target's checkpoints get what the source's tell of the partitions that will come.
3. Each partition's directory is renamed.
4. Checkpoints forget partitions that belong elsewhere and do not lie there. A later topic of the
   same name may come back to the directory before it has any record, hence any directory: its start
   would tell that the disk has lost the records of which the checkpoint still tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from logstore.directory.closed_logs import CLOSED_LOGS
from logstore.directory.data_directory import DataDirectory, FoundPartition, Key, partition_name
from logstore.directory.deleted_partitions import DELETE_SUFFIX, name_of_leaving
from logstore.directory.journal_replay import Replayed, replay_journal
from logstore.directory.log_offsets import LogOffsets
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
)
from logstore.disk.files import FileSystem
from logstore.sync.journal import remove_journal


class StillDirectory:
    """One data directory that no broker uses, locked until `release`. Everything here blocks."""

    def __init__(self, files: FileSystem, path: str) -> None:
        """Lock the directory; make it if it is missing.

        Raises DirectoryInUse, ForeignDirectory.
        """
        self.path = path
        self._files = files
        self._data = DataDirectory(path, files)
        self._data.enter()
        self._offsets = LogOffsets(self._data.top)
        self._offsets.read()
        self.was_clean = files.exists(f"{path}/{CLEAN_SHUTDOWN}")

    def release(self) -> None:
        """Let a broker have the directory."""
        self._data.release()

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directory belongs to by its own account, if it names one."""
        return self._data.identity().get("cluster.id")

    def claim(self, cluster_id: str, node_id: int) -> None:
        """Write whose directory this is, or check that it is the same. Raises ForeignDirectory."""
        self._data.claim(cluster_id=cluster_id, node_id=node_id)

    def found(self) -> list[FoundPartition]:
        """Return the partitions that lie there."""
        return self._data.found_partitions({})

    def holds_log(self, found: FoundPartition) -> bool:
        """Whether a segment lies in the partition."""
        return self._data.holds_log((found.topic, found.partition))

    def prepare(self, *, accepts_damage: bool) -> Replayed:
        """Let partitions come and go: see step 1 above. Raises JournalDamaged."""
        replayed = Replayed()
        # After a clean stop Kafka may have gone on: replaying an old journal would undo its writes.
        if not self.was_clean:
            replayed = replay_journal(
                self._files,
                self.path,
                self._data.read_topic_id,
                accepts_damage=accepts_damage,
            )
        remove_journal(self._files, self.path)
        self._data.top.delete(CLOSED_LOGS)
        self._data.top.delete(CLEAN_SHUTDOWN)
        self._files.sync_directory(self.path)
        return replayed

    def expect(self, source: StillDirectory, keys: Iterable[Key]) -> None:
        """Write what the source's checkpoints tell of partitions that will come: step 2 above."""
        for ours, theirs in zip(self._three(), source._three(), strict=True):
            for key in keys:
                # Removed even if the source has no entry: an entry here is from an earlier time.
                ours.pop(key, None)
                if key in theirs:
                    ours[key] = theirs[key]
        for name in (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS):
            self._offsets.write(name, sync=True)

    def take(self, source: StillDirectory, keys: Sequence[Key]) -> None:
        """Move partitions here: step 3 above. Raises OSError, for another disk too."""
        for key in keys:
            name = partition_name(*key)
            self._files.rename(f"{source.path}/{name}", f"{self.path}/{name}")
        # The new name first: a power loss between must leave one of the two.
        self._files.sync_directory(self.path)
        self._files.sync_directory(source.path)

    def forget_absent(self, is_elsewhere: Callable[[Key], bool]) -> None:
        """Forget partitions that belong elsewhere and do not lie here: step 4 above."""
        told = self._offsets.keys()
        exists, directory_of = self._files.exists, self._data.directory_of
        self.forget(key for key in told if is_elsewhere(key) and not exists(directory_of(key)))

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget, durably, what the checkpoints tell of these partitions."""
        for name in sorted(self._offsets.forget(keys)):
            self._offsets.write(name, sync=True)

    def put_away(self, keys: Collection[Key]) -> list[str]:
        """Give deleted partitions names that are no partition's; return their new paths.

        A start deletes what has such a name. Without it, files that a kill leaves would be taken
        for the next topic's, once the file that tells the topic's id is gone.
        """
        self.forget(keys)
        targets = [f"{self.path}/{name_of_leaving(key, DELETE_SUFFIX)}" for key in keys]
        for key, target in zip(keys, targets, strict=True):
            self._files.rename(self._data.directory_of(key), target)
        if targets:
            self._files.sync_directory(self.path)
        return targets

    def _three(self) -> tuple[dict[Key, int], dict[Key, int], dict[Key, int]]:
        offsets = self._offsets
        return offsets.recovery_points, offsets.start_offsets, offsets.first_dirty_offsets
