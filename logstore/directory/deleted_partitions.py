"""Partitions that leave a data directory: deleted, or set aside as strays.

A deleted log is closed, and its directory gets a name that says what becomes of it
(`<topic>-<partition>.<id>-delete`); its files are deleted later (`discards`). Closing and renaming
take several turns of the event loop. Where a topic of the same name is created before a log's turn
has come, `free` closes and renames that log at once.

The checkpoints durably forget a deleted partition before the next partition of the same name is
opened (`settle`): otherwise the next log would begin where the deleted one did. If the process ends
before `settle`, the next process finds offsets of partitions that do not exist, and calls
`forget_lost` for them. Source: Kafka's LogManager.asyncDelete, UnifiedLog.logDeleteDirName.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from functools import partial
from threading import Lock

from logstore.directory.data_directory import Key, partition_name
from logstore.directory.log_offsets import LogOffsets
from logstore.disk.barriers import A_TURN, Aside
from logstore.disk.discards import Discards
from logstore.disk.files import FileSystem
from logstore.partition.log import PartitionLog

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
#: Above this number of unsettled partitions, a deletion settles them itself.
_UNSETTLED_MAX = 4096
#: The longest name that a directory entry may have, in bytes; a topic's may have 249.
_NAME_MAX = 255


class DeletedPartitions:
    """The partitions that leave one data directory.

    All methods but `settle` run on the event loop. All may raise OSError.
    """

    def __init__(
        self,
        path: str,
        files: FileSystem,
        offsets: LogOffsets,
        discards: Discards,
        aside: Aside,
        *,
        in_memory: bool,
    ) -> None:
        self._path = path
        self._files = files
        self._offsets = offsets
        self._discards = discards
        self._aside = aside
        self._in_memory = in_memory
        #: Logs that nothing else refers to any more, but that are not yet closed and renamed.
        self._leaving: dict[Key, PartitionLog] = {}
        #: The renamed directories of deleted logs, by the delay in ms until their files go.
        self._renamed: dict[int, list[str]] = {}
        #: Partitions that `settle` has to see to: their new name, or that the checkpoints have
        #: forgotten them, is not durable yet.
        self._unsettled: set[Key] = set()
        self._settling = Lock()
        #: The checkpoints that still tell of an unsettled partition.
        self._outdated: set[str] = set()

    async def delete(self, logs: Mapping[Key, PartitionLog]) -> None:
        """Delete logs that refuse requests already; they are durably gone on return."""
        self._leaving |= logs
        for turn, log in enumerate(logs.values(), 1):
            self._leave(log)
            if turn % A_TURN == 0:
                await asyncio.sleep(0)
        renamed, self._renamed = self._renamed, {}
        if renamed:
            # Mostly the names alone are synced: checkpoints can wait until a name is wanted again.
            has_many = len(self._unsettled) > _UNSETTLED_MAX
            sync_names = partial(self._files.sync_directory, self._path)
            await self._aside(self.settle if has_many or not self._outdated else sync_names)
        for delay_ms, directories in renamed.items():
            self._discards.directories_later(delay_ms, directories)

    def free(self, *keys: Key) -> None:
        """Make these names free, durably, for partitions that are about to be opened. May block."""
        for key in keys:
            if key in self._leaving:
                self._leave(self._leaving[key])
        if not self._unsettled.isdisjoint(keys):
            self.settle()

    async def free_all(self) -> None:
        """Settle in a thread if checkpoints are outdated, so that `free` hardly ever blocks."""
        if self._outdated:
            await self._aside(self.settle)

    def put_away(self, key: Key, suffix: str) -> str | None:
        """Forget a partition's offsets and rename its directory; `settle` makes both durable.

        Returns the new path, or None where the partition has no directory.
        """
        self.forget(key)
        name = partition_name(*key)
        if not self._files.exists(f"{self._path}/{name}"):
            return None
        target = f"{self._path}/{name_of_leaving(key, suffix)}"
        self._files.rename(f"{self._path}/{name}", target)
        self._unsettled.add(key)
        return target

    def forget(self, key: Key) -> None:
        """Forget what the checkpoints tell of a partition; `settle` makes that durable."""
        if outdated := self._offsets.forget((key,)):
            self._outdated |= outdated
            self._unsettled.add(key)

    def forget_lost(self, key: Key) -> None:
        """Forget what the checkpoints tell of a partition that has no directory.

        `settle` must follow before anything is written to the next partition of that name.
        """
        if not self._files.exists(f"{self._path}/{partition_name(*key)}"):
            self.forget(key)

    def settle(self) -> None:
        """Make durable all deletions, and checkpoints without them. Blocks; for any thread."""
        # One thread at a time: a name is free only after the thread that settles it has finished.
        with self._settling:
            if not self._unsettled:
                return
            # Both are read before anything is written: the event loop may add to them meanwhile,
            # and what it adds is settled the next time.
            settled = set(self._unsettled)
            outdated, self._outdated = self._outdated, set()
            for name in sorted(outdated):
                self._offsets.write(name, sync=True)
            self._files.sync_directory(self._path)
            self._unsettled -= settled

    def sweep(self) -> None:
        """Begin to delete the directories whose deletion the last process had not finished."""
        names = [name for name in self._files.list(self._path) if name.endswith(DELETE_SUFFIX)]
        self._discards.directories_later(0, [f"{self._path}/{name}" for name in names])

    def finish(self) -> None:
        """Complete all deletions that are under way. Blocks."""
        for log in list(self._leaving.values()):
            self._leave(log)
        if not self._in_memory:
            self.settle()

    def abandon(self) -> None:
        """Close all logs that are leaving, and write nothing: as the end of the process would."""
        for log in self._leaving.values():
            log.close()
        self._leaving.clear()

    def _leave(self, log: PartitionLog) -> None:
        """Close a deleted log and rename its directory, unless that is done already."""
        key = log.topic, log.partition
        if self._leaving.get(key) is not log:
            return
        del self._leaving[key]
        log.close_gone()
        target = None if self._in_memory else self.put_away(key, DELETE_SUFFIX)
        if target is not None:
            self._renamed.setdefault(log.config.file_delete_delay_ms, []).append(target)


def name_of_leaving(key: Key, suffix: str) -> str:
    """Return the new name of a leaving directory. A long topic's name is cut, as in Kafka."""
    topic, partition = key
    end = f"-{partition}.{uuid.uuid4().hex}{suffix}"
    return topic[: _NAME_MAX - len(end)] + end
